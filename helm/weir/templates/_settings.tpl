{{/* Ports of the containers. Health has one of its own under TLS, because the kubelet's probes speak plain text. */}}
{{- define "weir.ports" -}}
grpc: 50051
metrics: 9090
{{- if .Values.tls.enabled }}
health: 50053
{{- end }}
{{- if .Values.sidecar.enabled }}
sidecar: 9091
{{- end }}
{{- end -}}

{{/* Folder of the model in the engine container. */}}
{{- define "weir.modelPath" -}}
{{- $model := .Values.model -}}
{{- if eq $model.source "image" -}}
{{- $model.path -}}
{{- else if eq $model.source "fetch" -}}
{{- printf "/models/%s" $model.hf.repo -}}
{{- with $model.hf.revision -}}@{{- replace "/" "-" . -}}{{- end -}}
{{- else -}}
{{- printf "/models/%s" (trimAll "/" ($model.path | default "")) | trimSuffix "/" -}}
{{- end -}}
{{- end -}}

{{/* Settings that follow from other values, by section; `settings` may not set them again. */}}
{{- define "weir.derivedSettings" -}}
{{- $ports := include "weir.ports" . | fromYaml -}}
model:
  model: {{ include "weir.modelPath" . | quote }}
  {{- if .Values.model.name }}
  served_model_name: {{ .Values.model.name | quote }}
  {{- else if eq .Values.model.source "fetch" }}
  served_model_name: {{ base .Values.model.hf.repo | quote }}
  {{- end }}
server:
  port: {{ $ports.grpc | int }}
  metrics_port: {{ $ports.metrics | int }}
  admin_address: unix:/run/weir/admin.sock
  drain_timeout: {{ int64 .Values.termination.drainSeconds }}
  {{- with $ports.health }}
  health_port: {{ int . }}
  {{- end }}
  {{- if .Values.tls.enabled }}
  tls_cert_file: /etc/weir/tls/tls.crt
  tls_key_file: /etc/weir/tls/tls.key
  {{- if .Values.tls.clientAuth.enabled }}
  tls_client_ca_file: /etc/weir/client-ca/ca.crt
  {{- end }}
  {{- end }}
  {{- if .Values.auth.enabled }}
  auth_tokens_file: /etc/weir/auth/tokens
  {{- end }}
{{- end -}}

{{/* Every setting by section: derived, then given, then the preset's. */}}
{{- define "weir.settings" -}}
{{- $sections := include "weir.derivedSettings" . | fromYaml -}}
{{- range $more := list .Values.settings ((include "weir.preset" . | fromYaml).settings) -}}
{{- range $section, $given := $more | default dict -}}
{{- $all := get $sections $section | default dict -}}
{{- range $key, $value := $given | default dict -}}
{{- if and (not (hasKey $all $key)) (not (kindIs "invalid" $value)) -}}
{{- $_ := set $all $key $value -}}
{{- end -}}
{{- end -}}
{{- $_ := set $sections $section $all -}}
{{- end -}}
{{- end -}}
{{- toJson $sections -}}
{{- end -}}

{{/*
Settings as environment variables, `$(` escaped. In a ConfigMap they would change under the pods of the last revision: one of those
that restarts would run what a failed upgrade had left. In the pod template each revision has its own.
*/}}
{{- define "weir.settingsEnv" -}}
{{- range $section, $settings := include "weir.settings" . | fromJson -}}
{{- range $key, $value := $settings }}
{{- $text := toJson $value }}
{{- if kindIs "string" $value }}{{ $text = $value }}{{ end }}
- {name: {{ printf "WEIR_%s" (upper $key) }}, value: {{ $text | replace "$(" "$$(" | quote }}}
{{- end }}
{{- end -}}
{{- end -}}
