{{/* Fails with a sentence that says what to change. Every template includes it first, so no other error comes before. */}}
{{- define "weir.check" -}}
{{- include "weir.check.shape" . -}}
{{- include "weir.check.nulls" . -}}
{{- include "weir.check.settings" . -}}
{{- include "weir.check.model" . -}}
{{- include "weir.check.rollout" . -}}
{{- include "weir.check.security" . -}}
{{- include "weir.check.scaling" . -}}
{{- include "weir.check.routing" . -}}
{{- end -}}

{{/* Every map of values.yaml must be one, and may hold only the keys that it has there. */}}
{{- define "weir.check.shape" -}}
{{- $values := .Values -}}
{{- $renamed := dict "replicas" "replicaCount" "podSecurity" "podSecurityContext" "securityContext" "containerSecurityContext" "metrics" "monitoring" "ingress" "gateway" "env" "extraEnv" "volumes" "extraVolumes" "volumeMounts" "extraVolumeMounts" "args" "extraArgs" "config" "settings" "hpa" "autoscaling" "pdb" "podDisruptionBudget" "serviceMonitor" "monitoring.serviceMonitor" -}}
{{- range $path, $keys := include "weir.knownValues" . | fromYaml -}}
{{- $map := $values -}}
{{- if ne $path "." -}}
{{- range $step := splitList "." $path -}}
{{- if not (kindIs "map" (get $map $step)) -}}
{{- fail (printf "\n\nvalues: `%s` is not a mapping. Leave the key out to keep its defaults, or give it some of: %s.\n" $path (join ", " $keys)) -}}
{{- end -}}
{{- $map = get $map $step -}}
{{- end -}}
{{- end -}}
{{- range $key, $_ := $map -}}
{{- if not (has $key $keys) -}}
{{- if and (eq $path ".") (hasKey $renamed $key) -}}
{{- fail (printf "\n\nvalues: `%s` is called `%s` in this chart.\n" $key (get $renamed $key)) -}}
{{- end -}}
{{- fail (printf "\n\nvalues: `%s` is not a value of this chart; `%s` has: %s.\n" (trimPrefix ".." (printf "%s.%s" $path $key)) $path (join ", " $keys)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Values that have a default other than "nothing" may not be null. */}}
{{- define "weir.check.nulls" -}}
{{- $values := .Values -}}
{{- range $path := include "weir.requiredValues" . | fromYamlArray -}}
{{- $value := $values -}}
{{- range $step := splitList "." $path -}}
{{- $value = get $value $step -}}
{{- end -}}
{{- if or (kindIs "invalid" $value) (eq (toString $value) "") -}}
{{- fail (printf "\n\nvalues: `%s` is empty. Leave the key out to keep its default.\n" $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "weir.check.settings" -}}
{{- $owner := dict "model" "model.source and model.path" "served_model_name" "model.name" "port" "ports.grpc" "metrics_port" "ports.metrics" "admin_address" "nothing (it is the socket that the sidecar uses)" "drain_timeout" "termination.drainSeconds" "health_port" "ports.health" "tls_cert_file" "tls.*" "tls_key_file" "tls.*" "tls_client_ca_file" "tls.clientAuth.*" "auth_tokens_file" "auth.*" -}}
{{- range $section, $given := .Values.settings -}}
{{- if and $given (has $section (list "model" "server")) -}}
{{- range $key, $_ := $given -}}
{{- if hasKey $owner $key -}}
{{- fail (printf "\n\nvalues: settings.%s.%s is set by the chart; use %s instead.\n" $section $key (get $owner $key)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $ports := list .Values.ports.grpc .Values.ports.metrics .Values.ports.health .Values.sidecar.port -}}
{{- if ne (len $ports) (len (uniq $ports)) -}}
{{- fail "\n\nvalues: ports.grpc, ports.metrics, ports.health and sidecar.port must be four different ports.\n" -}}
{{- end -}}
{{- end -}}

{{- define "weir.check.model" -}}
{{- $model := .Values.model -}}
{{- if and (eq $model.source "pvc") (not $model.pvc.claimName) -}}
{{- fail "\n\nvalues: model.source=pvc needs model.pvc.claimName, the claim that holds the model.\n" -}}
{{- end -}}
{{- if and (eq $model.source "volume") (not $model.volume) -}}
{{- fail "\n\nvalues: model.source=volume needs model.volume, a volume source such as {nfs: {server: files, path: /models}}.\n" -}}
{{- end -}}
{{- if and (eq $model.source "image") (not (hasPrefix "/" ($model.path | default ""))) -}}
{{- fail "\n\nvalues: model.source=image needs model.path, an absolute folder in the engine image.\n" -}}
{{- end -}}
{{- if eq $model.source "fetch" -}}
{{- if not $model.fetch.repo -}}
{{- fail "\n\nvalues: model.source=fetch needs model.fetch.repo, the repository to download.\n" -}}
{{- end -}}
{{- $keep := $model.fetch.persistence -}}
{{- if and $keep.existingClaim (not $keep.enabled) -}}
{{- fail "\n\nvalues: model.fetch.persistence.existingClaim is set, but model.fetch.persistence.enabled is false.\n" -}}
{{- end -}}
{{- if and $keep.existingClaim (eq .Values.kind "StatefulSet") -}}
{{- fail "\n\nvalues: a StatefulSet makes one claim for each replica; remove model.fetch.persistence.existingClaim, or use kind=Deployment.\n" -}}
{{- end -}}
{{- $many := or .Values.autoscaling.enabled (gt (int .Values.replicaCount) 1) -}}
{{- if and $keep.enabled (not $keep.existingClaim) (eq .Values.kind "Deployment") $many (not (has "ReadWriteMany" $keep.accessModes)) -}}
{{- fail "\n\nvalues: several replicas of a Deployment share one claim, which model.fetch.persistence.accessModes allows on one node only; use [ReadWriteMany], or kind=StatefulSet for one claim each.\n" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "weir.check.rollout" -}}
{{- $t := .Values.termination -}}
{{- $needed := add $t.preStopSeconds $t.drainSeconds $t.flushSeconds -}}
{{- if and $t.gracePeriodSeconds (lt (int64 $t.gracePeriodSeconds) $needed) -}}
{{- fail (printf "\n\nvalues: termination.gracePeriodSeconds is %d, but preStopSeconds + drainSeconds + flushSeconds is %d: running streams would be killed. Raise it to %d, lower the others, or set it to null.\n" (int64 $t.gracePeriodSeconds) $needed $needed) -}}
{{- end -}}
{{- if and (eq $t.preStopAction "sleep") (semverCompare "<1.30.0-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "\n\nvalues: termination.preStopAction=sleep needs Kubernetes 1.30, this is %s; use auto or exec.\n" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and (eq .Values.kind "Deployment") (lt (int .Values.progressDeadlineSeconds) (int .Values.probes.startup.budgetSeconds)) -}}
{{- fail (printf "\n\nvalues: progressDeadlineSeconds (%d) is less than probes.startup.budgetSeconds (%d): a rollout would count as failed while the model loads.\n" (int .Values.progressDeadlineSeconds) (int .Values.probes.startup.budgetSeconds)) -}}
{{- end -}}
{{- $s := .Values.strategy -}}
{{- if and $s (hasKey $s "rollingUpdate") (ne ($s.type | default "RollingUpdate") "RollingUpdate") -}}
{{- fail (printf "\n\nvalues: strategy.rollingUpdate goes with type RollingUpdate only; with %s remove it.\n" $s.type) -}}
{{- end -}}
{{- $types := ternary (list "RollingUpdate" "Recreate") (list "RollingUpdate" "OnDelete") (eq .Values.kind "Deployment") -}}
{{- if and $s (not (has ($s.type | default "RollingUpdate") $types)) -}}
{{- fail (printf "\n\nvalues: strategy.type of a %s is %s, not %s.\n" .Values.kind (join " or " $types) $s.type) -}}
{{- end -}}
{{- $pdb := .Values.podDisruptionBudget -}}
{{- if and $pdb.enabled (eq (kindIs "invalid" $pdb.maxUnavailable) (kindIs "invalid" $pdb.minAvailable)) -}}
{{- fail "\n\nvalues: podDisruptionBudget takes exactly one of maxUnavailable and minAvailable; set the other to null.\n" -}}
{{- end -}}
{{- end -}}

{{- define "weir.check.security" -}}
{{- $tls := .Values.tls -}}
{{- if and $tls.enabled (not $tls.secretName) (not $tls.certManager.enabled) -}}
{{- fail "\n\nvalues: tls.enabled needs tls.secretName (a kubernetes.io/tls Secret) or tls.certManager.enabled.\n" -}}
{{- end -}}
{{- if and (not $tls.enabled) (or $tls.clientAuth.enabled $tls.certManager.enabled) -}}
{{- fail "\n\nvalues: tls.clientAuth and tls.certManager do nothing without tls.enabled=true.\n" -}}
{{- end -}}
{{- if and $tls.certManager.enabled (not $tls.certManager.issuerRef.name) -}}
{{- fail "\n\nvalues: tls.certManager.enabled needs tls.certManager.issuerRef.name.\n" -}}
{{- end -}}
{{- if and .Values.auth.enabled (not .Values.auth.tokensSecretName) -}}
{{- fail "\n\nvalues: auth.enabled needs auth.tokensSecretName, a Secret with one token a line.\n" -}}
{{- end -}}
{{- $side := .Values.sidecar -}}
{{- if and (not $side.enabled) (or $side.readinessGate.enabled $side.admissionPolicy.enabled) -}}
{{- fail "\n\nvalues: sidecar.readinessGate and sidecar.admissionPolicy need sidecar.enabled=true; nothing else could open the gate.\n" -}}
{{- end -}}
{{- if and $side.enabled (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) -}}
{{- fail "\n\nvalues: the sidecar needs a ServiceAccount of its own: set serviceAccount.create=true or serviceAccount.name, or sidecar.enabled=false.\n" -}}
{{- end -}}
{{- if and $side.admissionPolicy.enabled (semverCompare "<1.30.0-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "\n\nvalues: sidecar.admissionPolicy needs Kubernetes 1.30, this is %s.\n" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- end -}}

{{- define "weir.check.scaling" -}}
{{- $scale := .Values.autoscaling -}}
{{- if $scale.enabled -}}
{{- if gt (int $scale.minReplicas) (int $scale.maxReplicas) -}}
{{- fail (printf "\n\nvalues: autoscaling.minReplicas (%d) is more than autoscaling.maxReplicas (%d).\n" (int $scale.minReplicas) (int $scale.maxReplicas)) -}}
{{- end -}}
{{- if and (eq $scale.type "hpa") (lt (int $scale.minReplicas) 1) -}}
{{- fail "\n\nvalues: autoscaling.minReplicas=0 needs autoscaling.type=keda.\n" -}}
{{- end -}}
{{- if and (kindIs "invalid" $scale.queuedTokensPerPod) (kindIs "invalid" $scale.kvUse) (not $scale.extraMetrics) -}}
{{- fail "\n\nvalues: autoscaling.enabled needs one of autoscaling.queuedTokensPerPod, autoscaling.kvUse and autoscaling.extraMetrics.\n" -}}
{{- end -}}
{{- if and (eq $scale.type "keda") (not $scale.keda.prometheusAddress) -}}
{{- fail "\n\nvalues: autoscaling.type=keda needs autoscaling.keda.prometheusAddress.\n" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.monitoring.serviceMonitor.enabled .Values.monitoring.podMonitor.enabled -}}
{{- fail "\n\nvalues: monitoring.serviceMonitor and monitoring.podMonitor would scrape every pod twice; enable one.\n" -}}
{{- end -}}
{{- end -}}

{{- define "weir.check.routing" -}}
{{- if and .Values.inferencePool.enabled (not .Values.inferencePool.endpointPicker.name) -}}
{{- fail "\n\nvalues: inferencePool.enabled needs inferencePool.endpointPicker.name, the endpoint picker's Service.\n" -}}
{{- end -}}
{{- if and .Values.gateway.grpcRoute.enabled (not .Values.gateway.grpcRoute.parentRefs) -}}
{{- fail "\n\nvalues: gateway.grpcRoute.enabled needs gateway.grpcRoute.parentRefs, the Gateways that serve it.\n" -}}
{{- end -}}
{{- if and .Values.gateway.httpRoute.enabled (not .Values.gateway.httpRoute.parentRefs) -}}
{{- fail "\n\nvalues: gateway.httpRoute.enabled needs gateway.httpRoute.parentRefs, the Gateways that serve it.\n" -}}
{{- end -}}
{{- end -}}
