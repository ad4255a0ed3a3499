{{/* Names of the gauges that scaling reads; tests hold them to those that the server exports. */}}
{{- define "weir.metric.queuedTokens" -}}weir_queue_tokens{{- end -}}
{{- define "weir.metric.kvUse" -}}weir_kv_used_ratio{{- end -}}

{{/*
What selects this release's series in Prometheus: the pods' labels, which the ServiceMonitor copies, and not their names:
those of a release `weir-canary` begin like those of a release `weir`.
*/}}
{{- define "weir.seriesSelector" -}}
{{- printf "namespace=%q" .Release.Namespace -}}
{{- range $label, $value := include "weir.componentLabels" (dict "root" .) | fromYaml -}}
{{- printf ",%s=%q" (regexReplaceAll "[^a-zA-Z0-9_]" $label "_") $value -}}
{{- end -}}
{{- end -}}
