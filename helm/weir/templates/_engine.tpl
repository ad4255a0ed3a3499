{{- define "weir.engineContainer" -}}
{{- $ports := include "weir.ports" . | fromYaml -}}
- name: weir
  image: {{ include "weir.image" (dict "image" .Values.image "root" .) }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args:
    - serve
    {{- range .Values.extraArgs }}
    - {{ include "weir.text" (dict "value" . "at" "extraArgs") | quote }}
    {{- end }}
  env:
    {{- include "weir.engineEnv" . | nindent 4 }}
  {{- with .Values.extraEnvFrom }}
  envFrom:
    {{- include "weir.plainYaml" (dict "it" . "at" "extraEnvFrom") | nindent 4 }}
  {{- end }}
  ports:
    {{- range $name, $port := omit $ports "sidecar" }}
    - {name: {{ $name }}, containerPort: {{ int $port }}, protocol: TCP}
    {{- end }}
  {{- include "weir.probes" . | nindent 2 }}
  {{- if gt (int64 .Values.termination.preStopSeconds) 0 }}
  lifecycle:
    preStop:
      {{- include "weir.preStop" . | nindent 6 }}
  {{- end }}
  resources:
    {{- include "weir.engineResources" . | nindent 4 }}
  {{- with include "weir.containerSecurity" . }}
  {{- . | nindent 2 }}
  {{- end }}
  volumeMounts:
    - {name: run, mountPath: /run/weir}
    - {name: tmp, mountPath: /tmp}
    - {name: cache, mountPath: /cache}
    {{- if ne .Values.model.source "image" }}
    - {name: model, mountPath: /models, readOnly: true}
    {{- end }}
    {{- if .Values.tls.enabled }}
    - {name: tls, mountPath: /etc/weir/tls, readOnly: true}
    {{- if .Values.tls.clientAuth.enabled }}
    - {name: client-ca, mountPath: /etc/weir/client-ca, readOnly: true}
    {{- end }}
    {{- end }}
    {{- if .Values.auth.enabled }}
    - {name: auth, mountPath: /etc/weir/auth, readOnly: true}
    {{- end }}
    {{- with .Values.extraVolumeMounts }}
    {{- include "weir.plainYaml" (dict "it" . "at" "extraVolumeMounts") | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* Environment of the engine. A variable of extraEnv takes the place of the chart's: a name may come once only. */}}
{{- define "weir.engineEnv" -}}
{{- $extra := (include "weir.plain" (dict "it" (.Values.extraEnv | default list) "at" "extraEnv") | fromJson).it -}}
{{- $given := list -}}
{{- range $extra -}}
{{- $given = append $given .name -}}
{{- end -}}
{{- $all := list -}}
{{- range include "weir.ownEnv" . | fromYamlArray -}}
{{- if not (has .name $given) -}}
{{- $all = append $all . -}}
{{- end -}}
{{- end -}}
{{- concat $all $extra | toYaml -}}
{{- end -}}

{{- define "weir.ownEnv" -}}
- {name: HOME, value: /cache}
- {name: XDG_CACHE_HOME, value: /cache}
- {name: TRITON_CACHE_DIR, value: /cache/triton}
{{- include "weir.settingsEnv" . }}
{{ include "weir.otlpEnv" . }}
{{- end -}}

{{/* The startup probe waits for the model; liveness starts after it, so it needs no delay of its own. */}}
{{- define "weir.probes" -}}
{{- $ports := include "weir.ports" . | fromYaml -}}
{{- $port := $ports.health | default $ports.grpc | int -}}
startupProbe:
  grpc: {port: {{ $port }}, service: readiness}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: {{ ceil (divf .Values.startupBudgetSeconds 5) | int }}
livenessProbe:
  grpc: {port: {{ $port }}, service: liveness}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
readinessProbe:
  grpc: {port: {{ $port }}, service: readiness}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
{{- end -}}

{{/* The kubelet's own sleep where it has one (Kubernetes 1.30). */}}
{{- define "weir.preStop" -}}
{{- if semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version -}}
sleep: {seconds: {{ int64 .Values.termination.preStopSeconds }}}
{{- else -}}
exec:
  command: [sleep, {{ int64 .Values.termination.preStopSeconds | quote }}]
{{- end -}}
{{- end -}}

{{/* Standard OpenTelemetry variables. Values of attributes are percent-encoded, as a comma would end them. */}}
{{- define "weir.otlpEnv" -}}
{{- $attributes := list (printf "k8s.namespace.name=%s" .Release.Namespace) "k8s.pod.name=$(POD_NAME)" "k8s.node.name=$(NODE_NAME)" "service.instance.id=$(POD_NAME)" (printf "service.version=%s" (.Values.image.tag | default .Chart.AppVersion)) -}}
{{- range $key, $value := include "weir.strings" (dict "values" .Values.otlp.resourceAttributes "at" "otlp.resourceAttributes") | fromYaml -}}
{{- $attributes = append $attributes (printf "%s=%s" $key (urlquery $value | replace "+" "%20")) -}}
{{- end -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- {name: OTEL_SERVICE_NAME, value: {{ include "weir.fullname" . | quote }}}
- {name: OTEL_RESOURCE_ATTRIBUTES, value: {{ join "," $attributes | quote }}}
{{- if .Values.otlp.endpoint }}
- {name: OTEL_EXPORTER_OTLP_ENDPOINT, value: {{ .Values.otlp.endpoint | quote }}}
- {name: OTEL_EXPORTER_OTLP_PROTOCOL, value: {{ .Values.otlp.protocol }}}
{{- with .Values.otlp.headersSecretName }}
- name: OTEL_EXPORTER_OTLP_HEADERS
  valueFrom:
    secretKeyRef: {name: {{ . | quote }}, key: headers}
{{- end }}
{{- end }}
{{- end -}}
