{{/* The values of the chosen preset, as YAML. */}}
{{- define "weir.preset" -}}
{{- .Files.Get (printf "presets/%s.yaml" .Values.preset) -}}
{{- end -}}

{{/* GPUs of a pod. */}}
{{- define "weir.gpuCount" -}}
{{- $preset := include "weir.preset" . | fromYaml -}}
{{- kindIs "invalid" .Values.gpu.count | ternary $preset.gpu.count .Values.gpu.count | int64 -}}
{{- end -}}

{{/* Tolerations as a YAML list. */}}
{{- define "weir.tolerations" -}}
{{- $preset := include "weir.preset" . | fromYaml -}}
{{- include "weir.plainYaml" (dict "it" (.Values.tolerations | default $preset.tolerations | default list) "at" "tolerations") -}}
{{- end -}}

{{/* resources of the engine with the GPU written to both sides; 0 GPUs leave the key out. */}}
{{- define "weir.engineResources" -}}
{{- $preset := include "weir.preset" . | fromYaml -}}
{{- $r := (include "weir.plain" (dict "it" (.Values.resources | default $preset.resources) "at" "resources") | fromJson).it -}}
{{- if .Values.gpu.resourceClaims -}}
{{- $claims := list -}}
{{- range .Values.gpu.resourceClaims -}}
{{- $claims = append $claims (dict "name" .name) -}}
{{- end -}}
{{- $_ := set $r "claims" (concat $claims ($r.claims | default list)) -}}
{{- else if gt (include "weir.gpuCount" . | int) 0 -}}
{{- range $side := list "requests" "limits" -}}
{{- $sum := get $r $side | default dict -}}
{{- $_ := set $sum $.Values.gpu.resourceName (include "weir.gpuCount" $) -}}
{{- $_ := set $r $side $sum -}}
{{- end -}}
{{- end -}}
{{- toYaml $r -}}
{{- end -}}
