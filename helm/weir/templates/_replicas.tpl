{{/*
Who owns spec.replicas: the chart with a replicaCount, others without one or with autoscaling. A field that was in the
last revision cannot simply be left out: Helm 3 would send null, Helm 4 would give up the field, and either way the API
server's default is 1. So as long as the chart still owns it, the number of the live object is rendered, whatever it is.
`helm template` and GitOps see no live object; there a release that autoscales has replicaCount null from the start.
*/}}
{{- define "weir.replicas" -}}
{{- $live := lookup "apps/v1" .Values.kind .Release.Namespace (include "weir.fullname" .) -}}
{{- $fixed := and (not .Values.autoscaling.enabled) (not (kindIs "invalid" .Values.replicaCount)) -}}
{{- $owners := include "weir.replicasOwners" $live | fromYaml -}}
{{- if $fixed -}}
{{- $wanted := int64 .Values.replicaCount -}}
{{- if and $owners.served $owners.others (ne (int64 $live.spec.replicas) $wanted) -}}
{{- fail (printf "\n\nvalues: replicaCount is %d, but %s %s has %d replicas, set by %s: Helm would stop halfway at the conflict. Set replicaCount to %d, or to null to leave it to others, or scale back first.\n" $wanted .Values.kind (include "weir.fullname" .) (int64 $live.spec.replicas) (join ", " $owners.others) (int64 $live.spec.replicas)) -}}
{{- end -}}
{{- $wanted -}}
{{- else if $owners.chart -}}
{{- int64 $live.spec.replicas -}}
{{- end -}}
{{- end -}}

{{/*
YAML: `served`: Helm applies this object on the server (Helm 4); `chart`: the last revision rendered spec.replicas;
`others`: further managers of the field. Argument: the live object, empty when there is none.
*/}}
{{- define "weir.replicasOwners" -}}
{{- $served := false -}}
{{- $chart := eq (dig "metadata" "annotations" "weir.inference/replicas" "" .) "chart" -}}
{{- $others := list -}}
{{- range dig "metadata" "managedFields" list . -}}
{{- $owns := hasKey (dig "fieldsV1" "f:spec" dict .) "f:replicas" -}}
{{- if and (eq .operation "Apply") (hasKey (dig "fieldsV1" "f:metadata" "f:annotations" dict .) "f:meta.helm.sh/release-name") -}}
{{- $served = true -}}
{{- $chart = $owns -}}
{{- else if $owns -}}
{{- $others = append $others .manager -}}
{{- end -}}
{{- end -}}
{{- toYaml (dict "served" $served "chart" $chart "others" $others) -}}
{{- end -}}

{{/* Annotations of the workload: Helm 3 leaves no other trace of whether the last revision rendered the number. */}}
{{- define "weir.replicasAnnotation" -}}
{{- if include "weir.replicas" . -}}
weir.inference/replicas: chart
{{- end -}}
{{- end -}}
