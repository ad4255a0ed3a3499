{{/* Pod template of the Deployment and the StatefulSet. Nothing in it may change with the chart's version alone. */}}
{{- define "weir.podTemplate" -}}
{{- $labels := include "weir.selectorLabels" . | fromYaml -}}
{{- $annotations := dict "kubectl.kubernetes.io/default-container" "weir" -}}
{{- range $more := list "podLabels" "commonLabels" -}}
{{- $labels = merge $labels (include "weir.strings" (dict "values" (get $.Values $more) "at" $more) | fromYaml) -}}
{{- end -}}
{{- range $more := list "podAnnotations" "commonAnnotations" -}}
{{- $annotations = merge $annotations (include "weir.strings" (dict "values" (get $.Values $more) "at" $more) | fromYaml) -}}
{{- end -}}
metadata:
  labels:
    {{- toYaml $labels | nindent 4 }}
  annotations:
    {{- toYaml $annotations | nindent 4 }}
spec:
  {{- include "weir.podBasics" . | nindent 2 }}
  serviceAccountName: {{ include "weir.serviceAccountName" . | quote }}
  terminationGracePeriodSeconds: {{ include "weir.gracePeriodSeconds" . }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  {{- with .Values.runtimeClassName }}
  runtimeClassName: {{ . | quote }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- include "weir.plainYaml" (dict "it" . "at" "affinity") | nindent 4 }}
  {{- end }}
  {{- with .Values.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- range . }}
    {{- $selector := dict "matchLabels" (include "weir.selectorLabels" $ | fromYaml) }}
    {{- $constraint := set (deepCopy .) "labelSelector" (.labelSelector | default $selector) }}
    - {{ include "weir.plainYaml" (dict "it" $constraint "at" "topologySpreadConstraints") | nindent 6 | trim }}
    {{- end }}
  {{- end }}
  {{- with .Values.gpu.resourceClaims }}
  resourceClaims:
    {{- include "weir.plainYaml" (dict "it" . "at" "gpu.resourceClaims") | nindent 4 }}
  {{- end }}
  {{- if .Values.sidecar.readinessGate.enabled }}
  readinessGates:
    - conditionType: weir.inference/kv-ready
  {{- end }}
  {{- with include "weir.initContainers" . | trim }}
  initContainers:
    {{- . | nindent 4 }}
  {{- end }}
  containers:
    {{- include "weir.engineContainer" . | nindent 4 }}
    {{- with .Values.extraContainers }}
    {{- include "weir.plainYaml" (dict "it" . "at" "extraContainers") | nindent 4 }}
    {{- end }}
  volumes:
    {{- include "weir.volumes" . | nindent 4 }}
  {{- with .Values.extraPodSpec }}
  {{- include "weir.plainYaml" (dict "it" . "at" "extraPodSpec") | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* What the serving pods and the test pod have in common: where they may run, and as whom. */}}
{{- define "weir.podBasics" -}}
# The engine needs no token; the sidecar mounts its own.
automountServiceAccountToken: false
# A Service named like the environment prefix would inject WEIR_PORT=tcp://...
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- include "weir.plainYaml" (dict "it" . "at" "imagePullSecrets") | nindent 2 }}
{{- end }}
{{- with .Values.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- include "weir.strings" (dict "values" . "at" "nodeSelector") | nindent 2 }}
{{- end }}
{{- with include "weir.tolerations" . | fromYamlArray }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* preStop + drain, and 10 s for the last spans and log lines and the sidecar's report. */}}
{{- define "weir.gracePeriodSeconds" -}}
{{- add (int64 .Values.termination.preStopSeconds) (int64 .Values.termination.drainSeconds) 10 -}}
{{- end -}}

{{- define "weir.containerSecurity" -}}
{{- with .Values.containerSecurityContext -}}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "weir.initContainers" -}}
{{- with .Values.extraInitContainers }}
{{ include "weir.plainYaml" (dict "it" . "at" "extraInitContainers") }}
{{- end }}
{{- if eq .Values.model.source "fetch" }}
{{ include "weir.fetchContainer" . }}
{{- end }}
{{- if .Values.sidecar.enabled }}
{{ include "weir.sidecarContainer" . }}
{{- end }}
{{- end -}}

{{/* Of several pods that share the volume one downloads; the others wait for its lock and find the work done. */}}
{{- define "weir.fetchContainer" -}}
{{- $hf := .Values.model.hf -}}
- name: fetch-model
  image: {{ include "weir.image" (dict "image" .Values.image "root" .) }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args:
    - fetch
    - {{ $hf.repo | quote }}
    - --dest=/models
    {{- with $hf.revision }}
    - --revision={{ . }}
    {{- end }}
  env:
    - {name: HOME, value: /cache}
    {{- with $hf.tokenSecretName }}
    - name: HF_TOKEN
      valueFrom:
        secretKeyRef: {name: {{ . | quote }}, key: token}
    {{- end }}
    {{- with $hf.env }}
    {{- include "weir.plainYaml" (dict "it" . "at" "model.hf.env") | nindent 4 }}
    {{- end }}
  resources:
    requests: {cpu: 500m, memory: 2Gi}
    limits: {memory: 8Gi}
  {{- with include "weir.containerSecurity" . }}
  {{- . | nindent 2 }}
  {{- end }}
  volumeMounts:
    - {name: model, mountPath: /models}
    - {name: cache, mountPath: /cache}
    - {name: tmp, mountPath: /tmp}
{{- end -}}

{{- define "weir.volumes" -}}
- name: run
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
- name: tmp
  emptyDir: {sizeLimit: 1Gi}
# Kernel and compiler caches: the root file system is read-only.
- name: cache
  emptyDir: {sizeLimit: 4Gi}
{{- include "weir.modelVolume" . }}
{{- if .Values.tls.enabled }}
- name: tls
  secret:
    secretName: {{ include "weir.tlsSecretName" . | quote }}
    defaultMode: 0440
{{- if .Values.tls.clientAuth.enabled }}
- name: client-ca
  secret:
    secretName: {{ include "weir.clientCaSecretName" . | quote }}
    defaultMode: 0440
    items:
      - {key: ca.crt, path: ca.crt}
{{- end }}
{{- end }}
{{- if .Values.auth.enabled }}
- name: auth
  secret:
    secretName: {{ .Values.auth.tokensSecretName | quote }}
    defaultMode: 0440
    items:
      - {key: tokens, path: tokens}
{{- end }}
{{- if include "weir.usesApi" . }}
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
{{ include "weir.plainYaml" (dict "it" . "at" "extraVolumes") }}
{{- end }}
{{- end -}}

{{/* The volume of the model; none when it is in the image or comes from a StatefulSet's claim template. */}}
{{- define "weir.modelVolume" -}}
{{- $model := .Values.model -}}
{{- if eq $model.source "pvc" }}
- name: model
  persistentVolumeClaim: {claimName: {{ $model.pvc.claimName | quote }}, readOnly: true}
{{- else if eq $model.source "volume" }}
- name: model
  {{- include "weir.plainYaml" (dict "it" $model.volume "at" "model.volume") | nindent 2 }}
{{- else if eq $model.source "fetch" }}
{{- if not $model.cache.enabled }}
- name: model
  emptyDir: {sizeLimit: {{ include "weir.quantity" $model.cache.size }}}
{{- else if eq .Values.kind "Deployment" }}
- name: model
  persistentVolumeClaim:
    claimName: {{ $model.cache.existingClaim | default (printf "%s-model" (include "weir.fullname" .)) | quote }}
{{- end }}
{{- end }}
{{- end -}}
