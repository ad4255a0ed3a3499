{{/* Names of the gauges that scaling reads; tests hold them to those that the server exports. */}}
{{- define "weir.metric.queuedTokens" -}}weir_queue_tokens{{- end -}}
{{- define "weir.metric.kvUse" -}}weir_kv_used_ratio{{- end -}}

{{/* Endpoints of a monitor. Argument: dict root, monitor. */}}
{{- define "weir.scrapes" -}}
{{- $ports := list "metrics" -}}
{{- if .root.Values.sidecar.enabled -}}
{{- $ports = append $ports "sidecar" -}}
{{- end -}}
{{- range $port := $ports }}
- port: {{ $port }}
  path: /metrics
  interval: {{ $.monitor.interval }}
  scrapeTimeout: {{ $.monitor.scrapeTimeout }}
  {{- with $.monitor.relabelings }}
  relabelings:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $.monitor.metricRelabelings }}
  metricRelabelings:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end -}}
