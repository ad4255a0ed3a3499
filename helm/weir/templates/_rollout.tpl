{{/* "true" when the pods of one rollout step cannot run beside the old ones: GPUs, or a volume of one node or pod. */}}
{{- define "weir.exclusive" -}}
{{- $keep := .Values.model.fetch.persistence -}}
{{- $shared := or (has "ReadWriteMany" $keep.accessModes) (has "ReadOnlyMany" $keep.accessModes) -}}
{{- if or (gt (int .Values.gpu.count) 0) (and (eq .Values.model.source "fetch") $keep.enabled (not $shared)) -}}true{{- end -}}
{{- end -}}

{{- define "weir.strategy" -}}
{{- if .Values.strategy -}}
{{- toYaml .Values.strategy -}}
{{- else if eq .Values.kind "StatefulSet" -}}
type: RollingUpdate
{{- else -}}
type: RollingUpdate
{{- if include "weir.exclusive" . }}
rollingUpdate: {maxSurge: 0, maxUnavailable: 1}
{{- else }}
rollingUpdate: {maxSurge: 1, maxUnavailable: 0}
{{- end }}
{{- end -}}
{{- end -}}

{{/* spec of a claim. Argument: model.fetch.persistence. */}}
{{- define "weir.claimSpec" -}}
accessModes:
  {{- toYaml .accessModes | nindent 2 }}
{{- with .storageClassName }}
storageClassName: {{ . }}
{{- end }}
resources:
  requests:
    storage: {{ .size }}
{{- end -}}
