{{/* Folder of the model in the engine container. */}}
{{- define "weir.modelPath" -}}
{{- $model := .Values.model -}}
{{- if eq $model.source "image" -}}
{{- $model.path -}}
{{- else -}}
{{- $path := $model.path -}}
{{- if and (not $path) (eq $model.source "fetch") -}}
{{- $path = $model.fetch.repo -}}
{{- end -}}
{{- printf "%s/%s" (trimSuffix "/" $model.mountPath) (trimAll "/" ($path | default "")) | trimSuffix "/" -}}
{{- end -}}
{{- end -}}

{{/* Settings that follow from other values, by section; `settings` may not set them again. */}}
{{- define "weir.derivedSettings" -}}
model:
  model: {{ include "weir.modelPath" . | quote }}
  {{- with .Values.model.name }}
  served_model_name: {{ . | quote }}
  {{- end }}
server:
  port: {{ .Values.ports.grpc }}
  metrics_port: {{ .Values.ports.metrics }}
  admin_address: unix:/run/weir/admin.sock
  drain_timeout: {{ .Values.termination.drainSeconds }}
  {{- if include "weir.separateHealth" . }}
  health_port: {{ .Values.ports.health }}
  {{- end }}
  {{- if .Values.tls.enabled }}
  tls_cert_file: /etc/weir/tls/tls.crt
  tls_key_file: /etc/weir/tls/tls.key
  {{- if .Values.tls.clientAuth.enabled }}
  tls_client_ca_file: /etc/weir/client-ca/{{ .Values.tls.clientAuth.caSecretKey }}
  {{- end }}
  {{- end }}
  {{- if .Values.auth.enabled }}
  auth_tokens_file: /etc/weir/auth/{{ .Values.auth.tokensSecretKey }}
  {{- end }}
{{- end -}}

{{/* The settings file of `weir serve`. */}}
{{- define "weir.settingsFile" -}}
{{- $derived := include "weir.derivedSettings" . | fromYaml -}}
{{- $file := dict -}}
{{- range $section, $given := .Values.settings -}}
{{- $_ := set $file $section (merge (dict) (get $derived $section | default dict) ($given | default dict)) -}}
{{- end -}}
{{- toYaml $file -}}
{{- end -}}
