{{/* "true" when the pods of one rollout step cannot run beside the old ones: GPUs, or a volume of one node or pod. */}}
{{- define "weir.exclusive" -}}
{{- $cache := .Values.model.cache -}}
{{- $shared := or (has "ReadWriteMany" $cache.accessModes) (has "ReadOnlyMany" $cache.accessModes) -}}
{{- $gpu := or .Values.gpu.resourceClaims (gt (include "weir.gpuCount" . | int) 0) -}}
{{- if or $gpu (and (eq .Values.model.source "fetch") $cache.enabled (not $shared)) -}}true{{- end -}}
{{- end -}}

{{/*
Whole on purpose: fields that the API server fills in belong to nobody, and a later `Recreate` applied by the server
would find a rollingUpdate beside it.
*/}}
{{- define "weir.strategy" -}}
{{- $strategy := deepCopy (.Values.strategy | default dict) -}}
{{- $type := $strategy.type | default "RollingUpdate" -}}
{{- $_ := set $strategy "type" $type -}}
{{- if and (eq .Values.kind "Deployment") (eq $type "RollingUpdate") -}}
{{- $default := dict "maxSurge" 1 "maxUnavailable" 0 -}}
{{- if .Values.strategy -}}
{{- $default = dict "maxSurge" "25%" "maxUnavailable" "25%" -}}
{{- else if include "weir.exclusive" . -}}
{{- $default = dict "maxSurge" 0 "maxUnavailable" 1 -}}
{{- end -}}
{{- $rolling := $strategy.rollingUpdate | default dict -}}
{{- range $key, $value := $default -}}
{{- if not (hasKey $rolling $key) -}}
{{- $_ := set $rolling $key $value -}}
{{- end -}}
{{- end -}}
{{- $_ := set $strategy "rollingUpdate" $rolling -}}
{{- end -}}
{{- toYaml $strategy -}}
{{- end -}}

{{/* spec of the model's claim. */}}
{{- define "weir.claimSpec" -}}
{{- $cache := .Values.model.cache -}}
accessModes:
  {{- toYaml $cache.accessModes | nindent 2 }}
{{- with $cache.storageClassName }}
storageClassName: {{ . | quote }}
{{- end }}
resources:
  requests:
    storage: {{ include "weir.quantity" $cache.size }}
{{- end -}}
