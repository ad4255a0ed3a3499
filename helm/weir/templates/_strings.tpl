{{/*
What Kubernetes wants as a string, from what YAML made of it. Argument: dict value, at (its place, for the message).
Integers are exact below 2^53, as Helm reads them as float64; other numbers have lost how they were written (1.10, 1e-3).
*/}}
{{- define "weir.text" -}}
{{- if kindIs "string" .value -}}
{{- toString .value -}}
{{- else if kindIs "bool" .value -}}
{{- toString .value -}}
{{- else if kindIs "float64" .value -}}
{{- if or (ne (floor .value) .value) (gt .value 9007199254740991.0) (lt .value -9007199254740991.0) -}}
{{- fail (printf "\n\nvalues: `%s` is the number %s, which may not be what was written; put it in quotes.\n" .at (toJson .value)) -}}
{{- end -}}
{{- toJson .value -}}
{{- else if or (kindIs "int64" .value) (kindIs "int" .value) -}}
{{- toJson .value -}}
{{- else -}}
{{- fail (printf "\n\nvalues: `%s` must be a string, not a %s.\n" .at (kindOf .value)) -}}
{{- end -}}
{{- end -}}

{{/* A map of strings as YAML; keys without a value are left out. Argument: dict values, at. */}}
{{- define "weir.strings" -}}
{{- $out := dict -}}
{{- range $key, $value := .values | default dict -}}
{{- if not (kindIs "invalid" $value) -}}
{{- $_ := set $out $key (include "weir.text" (dict "value" $value "at" (printf "%s.%s" $.at $key))) -}}
{{- end -}}
{{- end -}}
{{- toYaml $out -}}
{{- end -}}

{{/* A quantity: Kubernetes takes numbers too, but 1000000 must not become 1e+06. */}}
{{- define "weir.quantity" -}}
{{- kindIs "string" . | ternary (toString .) (toJson .) | quote -}}
{{- end -}}

{{/*
Structures that Kubernetes takes as they are (tolerations, affinity, containers, peers), with strings where it has
strings: below these keys integers and booleans become text. Argument: dict it, at. The answer is JSON, under `it`.
*/}}
{{- define "weir.plain" -}}
{{- $maps := list "matchLabels" "labels" "annotations" "nodeSelector" "volumeAttributes" "options" "limits" "requests" -}}
{{- $texts := list "key" "operator" "value" "effect" "topologyKey" "name" "namespace" "image" "mountPath" "subPath" "cidr" "secretName" "claimName" -}}
{{- $lists := list "values" "args" "command" "except" "namespaces" -}}
{{- $out := .it -}}
{{- if kindIs "map" .it -}}
{{- $out = dict -}}
{{- range $key, $value := .it -}}
{{- $at := printf "%s.%s" $.at $key -}}
{{- if kindIs "invalid" $value -}}
{{- else if and (has $key $maps) (kindIs "map" $value) -}}
{{- $strings := dict -}}
{{- range $k, $v := $value -}}
{{- if or (has $key (list "limits" "requests")) -}}
{{- $_ := set $strings $k (kindIs "string" $v | ternary $v (toJson $v)) -}}
{{- else if not (kindIs "invalid" $v) -}}
{{- $_ := set $strings $k (include "weir.text" (dict "value" $v "at" (printf "%s.%s" $at $k))) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $out $key $strings -}}
{{- else if and (has $key $lists) (kindIs "slice" $value) -}}
{{- $items := list -}}
{{- range $v := $value -}}
{{- $items = append $items (include "weir.text" (dict "value" $v "at" $at)) -}}
{{- end -}}
{{- $_ := set $out $key $items -}}
{{- else if and (has $key $texts) (not (kindIs "map" $value)) (not (kindIs "slice" $value)) -}}
{{- $_ := set $out $key (include "weir.text" (dict "value" $value "at" $at)) -}}
{{- else -}}
{{- $_ := set $out $key (include "weir.plain" (dict "it" $value "at" $at) | fromJson).it -}}
{{- end -}}
{{- end -}}
{{- else if kindIs "slice" .it -}}
{{- $out = list -}}
{{- range $index, $value := .it -}}
{{- $out = append $out (include "weir.plain" (dict "it" $value "at" (printf "%s[%d]" $.at $index)) | fromJson).it -}}
{{- end -}}
{{- end -}}
{{- toJson (dict "it" $out) -}}
{{- end -}}

{{/* The same as YAML. Argument: dict it, at. */}}
{{- define "weir.plainYaml" -}}
{{- (include "weir.plain" . | fromJson).it | toYaml -}}
{{- end -}}
