{{- define "weir.engineContainer" -}}
- name: weir
  image: {{ include "weir.image" (dict "image" .Values.image "root" .) }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args:
    - serve
    {{- with .Values.extraArgs }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  env:
    - {name: WEIR_CONFIG, value: /etc/weir/settings/weir.yaml}
    - {name: HOME, value: /cache}
    - {name: XDG_CACHE_HOME, value: /cache}
    - {name: TRITON_CACHE_DIR, value: /cache/triton}
    - {name: TORCHINDUCTOR_CACHE_DIR, value: /cache/inductor}
    {{- include "weir.otlpEnv" . | nindent 4 }}
    {{- with .Values.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.extraEnvFrom }}
  envFrom:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  ports:
    - {name: grpc, containerPort: {{ .Values.ports.grpc }}, protocol: TCP}
    - {name: metrics, containerPort: {{ .Values.ports.metrics }}, protocol: TCP}
    {{- if include "weir.separateHealth" . }}
    - {name: health, containerPort: {{ .Values.ports.health }}, protocol: TCP}
    {{- end }}
  {{- include "weir.probes" . | nindent 2 }}
  {{- if gt (int .Values.termination.preStopSeconds) 0 }}
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
    - {name: settings, mountPath: /etc/weir/settings, readOnly: true}
    - {name: run, mountPath: /run/weir}
    - {name: tmp, mountPath: /tmp}
    - {name: cache, mountPath: /cache}
    {{- if .Values.sharedMemory.enabled }}
    - {name: shm, mountPath: /dev/shm}
    {{- end }}
    {{- if ne .Values.model.source "image" }}
    - name: model
      mountPath: {{ .Values.model.mountPath }}
      readOnly: true
      {{- if and (eq .Values.model.source "pvc") .Values.model.pvc.subPath }}
      subPath: {{ .Values.model.pvc.subPath }}
      {{- end }}
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
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* The startup probe waits for the model; liveness starts after it, so it needs no delay of its own. */}}
{{- define "weir.probes" -}}
{{- $port := ternary .Values.ports.health .Values.ports.grpc (eq (include "weir.separateHealth" .) "true") -}}
{{- $p := .Values.probes -}}
startupProbe:
  grpc: {port: {{ $port }}, service: readiness}
  periodSeconds: {{ $p.startup.periodSeconds }}
  timeoutSeconds: {{ $p.startup.timeoutSeconds }}
  failureThreshold: {{ ceil (divf $p.startup.budgetSeconds $p.startup.periodSeconds) | int }}
livenessProbe:
  grpc: {port: {{ $port }}, service: liveness}
  periodSeconds: {{ $p.liveness.periodSeconds }}
  timeoutSeconds: {{ $p.liveness.timeoutSeconds }}
  failureThreshold: {{ $p.liveness.failureThreshold }}
readinessProbe:
  grpc: {port: {{ $port }}, service: readiness}
  periodSeconds: {{ $p.readiness.periodSeconds }}
  timeoutSeconds: {{ $p.readiness.timeoutSeconds }}
  failureThreshold: {{ $p.readiness.failureThreshold }}
{{- end -}}

{{- define "weir.preStop" -}}
{{- $action := .Values.termination.preStopAction -}}
{{- if eq $action "auto" -}}
{{- $action = ternary "sleep" "exec" (semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if eq $action "sleep" -}}
sleep: {seconds: {{ .Values.termination.preStopSeconds }}}
{{- else -}}
exec:
  command: [sleep, {{ .Values.termination.preStopSeconds | quote }}]
{{- end -}}
{{- end -}}

{{/* resources with the GPUs written to both sides; 0 GPUs leave the key out. */}}
{{- define "weir.engineResources" -}}
{{- $r := deepCopy (.Values.resources | default dict) -}}
{{- if gt (int .Values.gpu.count) 0 -}}
{{- $gpu := dict .Values.gpu.resourceName (toString (int .Values.gpu.count)) -}}
{{- $_ := set $r "requests" (merge (dict) $gpu ($r.requests | default dict)) -}}
{{- $_ := set $r "limits" (merge (dict) $gpu ($r.limits | default dict)) -}}
{{- end -}}
{{- toYaml $r -}}
{{- end -}}

{{/* Standard OpenTelemetry variables. */}}
{{- define "weir.otlpEnv" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- {name: OTEL_SERVICE_NAME, value: {{ include "weir.fullname" . }}}
- name: OTEL_RESOURCE_ATTRIBUTES
  value: k8s.namespace.name={{ .Release.Namespace }},k8s.pod.name=$(POD_NAME),k8s.node.name=$(NODE_NAME),service.instance.id=$(POD_NAME),service.version={{ .Chart.AppVersion }}
  {{- range $key, $value := .Values.otlp.resourceAttributes }},{{ $key }}={{ $value }}{{ end }}
{{- if .Values.otlp.endpoint }}
- {name: OTEL_EXPORTER_OTLP_ENDPOINT, value: {{ .Values.otlp.endpoint | quote }}}
- {name: OTEL_EXPORTER_OTLP_PROTOCOL, value: {{ .Values.otlp.protocol }}}
{{- with .Values.otlp.headersSecretName }}
- name: OTEL_EXPORTER_OTLP_HEADERS
  valueFrom:
    secretKeyRef: {name: {{ . }}, key: {{ $.Values.otlp.headersSecretKey }}}
{{- end }}
{{- end }}
{{- end -}}
