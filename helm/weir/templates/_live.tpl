{{/*
What the API server would refuse halfway through an upgrade, said before anything changes. Nothing is live in
`helm template`. Each takes the root.
*/}}
{{- define "weir.check.liveWorkload" -}}
{{- $name := include "weir.fullname" . -}}
{{- $live := lookup "apps/v1" .Values.kind .Release.Namespace $name -}}
{{- if $live -}}
{{- $wanted := include "weir.selectorLabels" . | fromYaml -}}
{{- if ne (toJson $live.spec.selector.matchLabels) (toJson $wanted) -}}
{{- fail (printf "\n\nvalues: the selector of %s %s cannot change from %s to %s (nameOverride). Install a second release and move the traffic.\n" .Values.kind $name (toJson $live.spec.selector.matchLabels) (toJson $wanted)) -}}
{{- end -}}
{{- if eq .Values.kind "StatefulSet" -}}
{{- $is := dict -}}
{{- with first ($live.spec.volumeClaimTemplates | default list) -}}
{{- $is = dict "accessModes" .spec.accessModes "size" .spec.resources.requests.storage "storageClassName" (.spec.storageClassName | default "") "annotations" (.metadata.annotations | default dict) -}}
{{- end -}}
{{- $cache := .Values.model.cache -}}
{{- $to := dict -}}
{{- if and (eq .Values.model.source "fetch") $cache.enabled -}}
{{- $to = dict "accessModes" $cache.accessModes "size" (include "weir.quantity" $cache.size | trimAll "\"") "storageClassName" ($cache.storageClassName | default "") "annotations" (include "weir.strings" (dict "values" $cache.annotations "at" "model.cache.annotations") | fromYaml) -}}
{{- end -}}
{{- if ne (toJson $is) (toJson $to) -}}
{{- fail (printf "\n\nvalues: model.cache of StatefulSet %s cannot change from %s to %s: its claim templates are immutable. Delete the StatefulSet with --cascade=orphan first; its pods go on, and the next upgrade takes them over.\n" $name (toJson $is) (toJson $to)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "weir.check.liveClaim" -}}
{{- $name := printf "%s-model" (include "weir.fullname" .) -}}
{{- $cache := .Values.model.cache -}}
{{- with lookup "v1" "PersistentVolumeClaim" .Release.Namespace $name -}}
{{- if ne (toJson (sortAlpha .spec.accessModes)) (toJson (sortAlpha $cache.accessModes)) -}}
{{- fail (printf "\n\nvalues: model.cache.accessModes of claim %s cannot change from %s to %s. Make another claim and set model.cache.existingClaim.\n" $name (toJson .spec.accessModes) (toJson $cache.accessModes)) -}}
{{- end -}}
{{- if and $cache.storageClassName (ne $cache.storageClassName (.spec.storageClassName | default "")) -}}
{{- fail (printf "\n\nvalues: model.cache.storageClassName of claim %s cannot change from %q to %q. Make another claim and set model.cache.existingClaim.\n" $name (.spec.storageClassName | default "") $cache.storageClassName) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "weir.check.liveService" -}}
{{- $wanted := get (.Values.service.extraSpec | default dict) "loadBalancerClass" | default "" -}}
{{- with lookup "v1" "Service" .Release.Namespace (include "weir.fullname" .) -}}
{{- $is := .spec.loadBalancerClass | default "" -}}
{{- if and (eq .spec.type "LoadBalancer") (eq $.Values.service.type "LoadBalancer") (ne $is $wanted) -}}
{{- fail (printf "\n\nvalues: loadBalancerClass of Service %s cannot change from %q to %q while it is a LoadBalancer. Set service.type to ClusterIP first.\n" (include "weir.fullname" $) $is $wanted) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Volumes that no pod of a namespace with enforced Pod Security would be created with, although Helm succeeds. */}}
{{- define "weir.check.liveNamespace" -}}
{{- $volumes := include "weir.unrestrictedVolumes" . | fromYamlArray -}}
{{- if $volumes -}}
{{- $level := dig "metadata" "labels" "pod-security.kubernetes.io/enforce" "" (lookup "v1" "Namespace" "" .Release.Namespace) -}}
{{- if or (eq $level "restricted") (and (eq $level "baseline") (has "hostPath" $volumes)) -}}
{{- fail (printf "\n\nvalues: namespace %s enforces Pod Security %q, which forbids volumes of type %s: no pod would be created. Make a PersistentVolume of it and use model.source=pvc.\n" .Release.Namespace $level (join ", " $volumes)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Types of the given volumes that the restricted Pod Security Standard forbids, as a YAML list. */}}
{{- define "weir.unrestrictedVolumes" -}}
{{- $allowed := list "configMap" "csi" "downwardAPI" "emptyDir" "ephemeral" "image" "persistentVolumeClaim" "projected" "secret" -}}
{{- $found := list -}}
{{- $volumes := .Values.extraVolumes | default list -}}
{{- if eq .Values.model.source "volume" -}}
{{- $volumes = append $volumes .Values.model.volume -}}
{{- end -}}
{{- range $volumes -}}
{{- range $type, $_ := omit . "name" -}}
{{- if not (has $type $allowed) -}}
{{- $found = append $found $type -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- uniq $found | toYaml -}}
{{- end -}}
