{{/*
Who owns spec.replicas: the chart with a replicaCount, others without one or with autoscaling. A field that was in the
last revision cannot simply be left out: Helm 3 would send null, Helm 4 would give up the field, and either way the API
server's default is 1. So once a revision had the number, all later ones have that of the live object, whatever it is; an
annotation remembers. A release that never had one never gets one. `helm template` and GitOps see no live object: there a
release that is to autoscale has replicaCount null from the start.
*/}}
{{- define "weir.replicas" -}}
{{- $live := lookup "apps/v1" .Values.kind .Release.Namespace (include "weir.fullname" .) -}}
{{- if not (or .Values.autoscaling.enabled (kindIs "invalid" .Values.replicaCount)) -}}
{{- include "weir.check.replicas" (dict "root" . "live" $live) -}}
{{- int64 .Values.replicaCount -}}
{{- else if eq (dig "metadata" "annotations" "weir.inference/replicas" "" $live) "chart" -}}
{{- int64 $live.spec.replicas -}}
{{- end -}}
{{- end -}}

{{/* Annotations of the workload. */}}
{{- define "weir.replicasAnnotation" -}}
{{- if include "weir.replicas" . -}}
weir.inference/replicas: chart
{{- end -}}
{{- end -}}

{{/*
Helm 4 applies on the server, which refuses another number than the one that another manager has set, after other objects
have changed. Argument: dict root, live (empty when there is none).
*/}}
{{- define "weir.check.replicas" -}}
{{- $wanted := int64 .root.Values.replicaCount -}}
{{- $served := false -}}
{{- $others := list -}}
{{- range dig "metadata" "managedFields" list .live -}}
{{- if and (eq .operation "Apply") (hasKey (dig "fieldsV1" "f:metadata" "f:annotations" dict .) "f:meta.helm.sh/release-name") -}}
{{- $served = semverCompare ">=4.0.0-0" $.root.Capabilities.HelmVersion.Version -}}
{{- else if hasKey (dig "fieldsV1" "f:spec" dict .) "f:replicas" -}}
{{- $others = append $others .manager -}}
{{- end -}}
{{- end -}}
{{- if and $served $others -}}
{{- $now := int64 .live.spec.replicas -}}
{{- if ne $now $wanted -}}
{{- fail (printf "\n\nvalues: replicaCount is %d, but %s %s has %d replicas, set by %s: Helm would stop halfway at the conflict. Set replicaCount to %d, or to null to leave it to others, or scale back first.\n" $wanted .root.Values.kind .live.metadata.name $now (join ", " $others) $now) -}}
{{- end -}}
{{- end -}}
{{- end -}}
