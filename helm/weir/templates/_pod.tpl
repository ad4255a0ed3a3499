{{/* Pod template of the Deployment and the StatefulSet. */}}
{{- define "weir.podTemplate" -}}
{{- $labels := merge (include "weir.selectorLabels" . | fromYaml) (include "weir.labels" . | fromYaml) -}}
{{- if .Values.inferencePool.enabled -}}
{{- $_ := set $labels "llm-d.ai/engine-type" "vllm" -}}
{{- end -}}
{{- $annotations := dict "checksum/settings" (include "weir.settingsFile" . | sha256sum) "kubectl.kubernetes.io/default-container" "weir" -}}
metadata:
  labels:
    {{- merge $labels (.Values.podLabels | default dict) (.Values.commonLabels | default dict) | toYaml | nindent 4 }}
  annotations:
    {{- merge $annotations (.Values.podAnnotations | default dict) (.Values.commonAnnotations | default dict) | toYaml | nindent 4 }}
spec:
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  serviceAccountName: {{ include "weir.serviceAccountName" . }}
  # The engine needs no token; the sidecar mounts its own.
  automountServiceAccountToken: false
  # A Service named like the environment prefix would inject WEIR_PORT=tcp://...
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "weir.gracePeriodSeconds" . }}
  {{- with .Values.podSecurityContext }}
  securityContext:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .Values.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with .Values.schedulerName }}
  schedulerName: {{ . }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- range . }}
    {{- $selector := dict "matchLabels" (include "weir.selectorLabels" $ | fromYaml) }}
    - {{ toYaml (set (deepCopy .) "labelSelector" (.labelSelector | default $selector)) | nindent 6 | trim }}
    {{- end }}
  {{- end }}
  {{- if .Values.sidecar.readinessGate.enabled }}
  readinessGates:
    - conditionType: weir.inference/kv-ready
  {{- end }}
  {{- $init := include "weir.initContainers" . }}
  {{- with trim $init }}
  initContainers:
    {{- . | nindent 4 }}
  {{- end }}
  containers:
    {{- include "weir.engineContainer" . | nindent 4 }}
    {{- with .Values.extraContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    {{- include "weir.volumes" . | nindent 4 }}
{{- end -}}

{{- define "weir.gracePeriodSeconds" -}}
{{- $t := .Values.termination -}}
{{- $t.gracePeriodSeconds | default (add $t.preStopSeconds $t.drainSeconds $t.flushSeconds) -}}
{{- end -}}

{{- define "weir.containerSecurity" -}}
{{- with .Values.containerSecurityContext -}}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "weir.initContainers" -}}
{{- with .Values.extraInitContainers }}
{{ toYaml . }}
{{- end }}
{{- if eq .Values.model.source "fetch" }}
{{ include "weir.fetchContainer" . }}
{{- end }}
{{- if .Values.sidecar.enabled }}
{{ include "weir.sidecarContainer" . }}
{{- end }}
{{- end -}}

{{- define "weir.fetchContainer" -}}
{{- $fetch := .Values.model.fetch -}}
- name: fetch-model
  image: {{ include "weir.image" (dict "image" .Values.image "root" .) }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args: [fetch, {{ $fetch.repo | quote }}, --dest, {{ .Values.model.mountPath | quote }}]
  env:
    - {name: HOME, value: /cache}
    {{- with $fetch.tokenSecretName }}
    - name: HF_TOKEN
      valueFrom:
        secretKeyRef: {name: {{ . }}, key: {{ $fetch.tokenSecretKey }}}
    {{- end }}
    {{- with $fetch.env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $fetch.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with include "weir.containerSecurity" . }}
  {{- . | nindent 2 }}
  {{- end }}
  volumeMounts:
    - {name: model, mountPath: {{ .Values.model.mountPath }}}
    - {name: cache, mountPath: /cache}
    - {name: tmp, mountPath: /tmp}
{{- end -}}

{{- define "weir.volumes" -}}
- name: settings
  configMap:
    name: {{ include "weir.fullname" . }}
- name: run
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
- name: tmp
  emptyDir: {sizeLimit: 1Gi}
- name: cache
  emptyDir: {sizeLimit: {{ .Values.cache.size }}}
{{- if .Values.sharedMemory.enabled }}
- name: shm
  emptyDir: {medium: Memory, sizeLimit: {{ .Values.sharedMemory.size }}}
{{- end }}
{{- include "weir.modelVolume" . }}
{{- if .Values.tls.enabled }}
- name: tls
  secret:
    secretName: {{ include "weir.tlsSecretName" . }}
    defaultMode: 0440
{{- if .Values.tls.clientAuth.enabled }}
- name: client-ca
  secret:
    secretName: {{ include "weir.clientCaSecretName" . }}
    defaultMode: 0440
    items:
      - {key: {{ .Values.tls.clientAuth.caSecretKey }}, path: {{ .Values.tls.clientAuth.caSecretKey }}}
{{- end }}
{{- end }}
{{- if .Values.auth.enabled }}
- name: auth
  secret:
    secretName: {{ .Values.auth.tokensSecretName }}
    defaultMode: 0440
    items:
      - {key: {{ .Values.auth.tokensSecretKey }}, path: {{ .Values.auth.tokensSecretKey }}}
{{- end }}
{{- if .Values.sidecar.enabled }}
- name: api-token
  projected:
    defaultMode: 0440
    sources:
      - serviceAccountToken: {path: token, expirationSeconds: 3607}
      - configMap:
          name: kube-root-ca.crt
          items: [{key: ca.crt, path: ca.crt}]
      - downwardAPI:
          items:
            - path: namespace
              fieldRef: {fieldPath: metadata.namespace}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The volume of the model; none when it is in the image or comes from a StatefulSet's claim template. */}}
{{- define "weir.modelVolume" -}}
{{- $model := .Values.model -}}
{{- if eq $model.source "pvc" }}
- name: model
  persistentVolumeClaim: {claimName: {{ $model.pvc.claimName }}, readOnly: true}
{{- else if eq $model.source "volume" }}
- name: model
  {{- toYaml $model.volume | nindent 2 }}
{{- else if eq $model.source "fetch" }}
{{- if not $model.fetch.persistence.enabled }}
- name: model
  emptyDir: {sizeLimit: {{ $model.fetch.persistence.size }}}
{{- else if eq .Values.kind "Deployment" }}
- name: model
  persistentVolumeClaim:
    claimName: {{ $model.fetch.persistence.existingClaim | default (printf "%s-model" (include "weir.fullname" .)) }}
{{- end }}
{{- end }}
{{- end -}}
