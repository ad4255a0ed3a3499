{{/* Fails with a sentence that says what to change. Every template includes it first, so no other error comes before. */}}
{{- define "weir.check" -}}
{{- include "weir.check.shape" . -}}
{{- include "weir.check.nulls" . -}}
{{- include "weir.check.settings" . -}}
{{- include "weir.check.model" . -}}
{{- include "weir.check.rollout" . -}}
{{- include "weir.check.security" . -}}
{{- include "weir.check.scaling" . -}}
{{- include "weir.check.environment" . -}}
{{- include "weir.check.extras" . -}}
{{- end -}}

{{/* Every map of values.yaml must be one, and may hold only the keys that it has there. */}}
{{- define "weir.check.shape" -}}
{{- $values := .Values -}}
{{- $renamed := dict "replicas" "replicaCount" "podSecurity" "podSecurityContext" "securityContext" "containerSecurityContext" "metrics" "monitoring" "ingress" "extraObjects" "gateway" "extraObjects" "inferencePool" "podLabels and docs/install.md" "env" "extraEnv" "volumes" "extraVolumes" "volumeMounts" "extraVolumeMounts" "args" "extraArgs" "config" "settings" "hpa" "autoscaling" "pdb" "podDisruptionBudget" "serviceMonitor" "monitoring.serviceMonitor" "probes" "startupBudgetSeconds" "schedulerName" "extraPodSpec.schedulerName" "dnsConfig" "extraPodSpec.dnsConfig" "sharedMemory" "extraVolumes" -}}
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
{{- $owner := dict "model" "model.source and model.path" "served_model_name" "model.name" "port" "service.port" "metrics_port" "nothing (it is 9090)" "admin_address" "nothing (it is the socket that the sidecar uses)" "drain_timeout" "termination.drainSeconds" "health_port" "nothing (it is 50053)" "tls_cert_file" "tls.*" "tls_key_file" "tls.*" "tls_client_ca_file" "tls.clientAuth.*" "auth_tokens_file" "auth.*" -}}
{{- range $section, $given := .Values.settings -}}
{{- if and $given (has $section (list "model" "server")) -}}
{{- range $key, $_ := $given -}}
{{- if hasKey $owner $key -}}
{{- fail (printf "\n\nvalues: settings.%s.%s is set by the chart; use %s instead.\n" $section $key (get $owner $key)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Further fields of an object are those that the chart does not write itself. */}}
{{- define "weir.check.extras" -}}
{{- $own := dict "extraPodSpec" (list "automountServiceAccountToken" "enableServiceLinks" "imagePullSecrets" "securityContext" "nodeSelector" "tolerations" "serviceAccountName" "terminationGracePeriodSeconds" "priorityClassName" "runtimeClassName" "affinity" "topologySpreadConstraints" "resourceClaims" "readinessGates" "initContainers" "containers" "volumes") "service.extraSpec" (list "type" "selector" "ports") "autoscaling.keda.extraSpec" (list "scaleTargetRef" "minReplicaCount" "maxReplicaCount" "triggers") -}}
{{- $given := dict "extraPodSpec" .Values.extraPodSpec "service.extraSpec" .Values.service.extraSpec "autoscaling.keda.extraSpec" .Values.autoscaling.keda.extraSpec -}}
{{- range $at, $fields := $given -}}
{{- range $field, $_ := $fields | default dict -}}
{{- if has $field (get $own $at) -}}
{{- fail (printf "\n\nvalues: %s may not have %s, which the chart writes from other values.\n" $at $field) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A variable comes once: Helm 4 applies on the server, which refuses a name that comes twice. */}}
{{- define "weir.check.environment" -}}
{{- $seen := dict -}}
{{- range .Values.extraEnv -}}
{{- if hasKey $seen .name -}}
{{- fail (printf "\n\nvalues: extraEnv has %s twice.\n" .name) -}}
{{- end -}}
{{- $_ := set $seen .name true -}}
{{- if and (hasPrefix "WEIR_" .name) (contains (printf "name: %s," .name) (include "weir.settingsEnv" $)) -}}
{{- fail (printf "\n\nvalues: extraEnv has %s, which comes from settings or another value; set it there.\n" .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "weir.check.model" -}}
{{- $model := .Values.model -}}
{{- if and (eq $model.source "pvc") (not $model.pvc.claimName) -}}
{{- fail "\n\nvalues: model.source=pvc needs model.pvc.claimName, the claim that holds the model.\n" -}}
{{- end -}}
{{- if and (eq $model.source "volume") (ne (len ($model.volume | default dict)) 1) -}}
{{- fail "\n\nvalues: model.source=volume needs model.volume, one volume source such as {csi: {driver: files.example.com}}.\n" -}}
{{- end -}}
{{- if and (eq $model.source "image") (not (hasPrefix "/" ($model.path | default ""))) -}}
{{- fail "\n\nvalues: model.source=image needs model.path, an absolute folder in the engine image.\n" -}}
{{- end -}}
{{- if eq $model.source "fetch" -}}
{{- if $model.path -}}
{{- fail "\n\nvalues: model.path goes with model.source=pvc, volume or image; what is fetched lies under the name of its repository.\n" -}}
{{- end -}}
{{- if and $model.hf.revision (not (contains "/" $model.hf.repo)) -}}
{{- fail (printf "\n\nvalues: model.hf.revision goes with a hub repository (org/name), not with %s.\n" $model.hf.repo) -}}
{{- end -}}
{{- $cache := $model.cache -}}
{{- if and $cache.existingClaim (not $cache.enabled) -}}
{{- fail "\n\nvalues: model.cache.existingClaim is set, but model.cache.enabled is false.\n" -}}
{{- end -}}
{{- if and $cache.existingClaim (eq .Values.kind "StatefulSet") -}}
{{- fail "\n\nvalues: a StatefulSet makes one claim for each replica; remove model.cache.existingClaim, or use kind=Deployment.\n" -}}
{{- end -}}
{{- $many := or .Values.autoscaling.enabled (kindIs "invalid" .Values.replicaCount) (gt (int64 .Values.replicaCount) 1) -}}
{{- $oneNode := hasKey (.Values.nodeSelector | default dict) "kubernetes.io/hostname" -}}
{{- if and $cache.enabled (not $cache.existingClaim) (eq .Values.kind "Deployment") $many (not (has "ReadWriteMany" $cache.accessModes)) (not (and $oneNode (has "ReadWriteOnce" $cache.accessModes))) -}}
{{- fail "\n\nvalues: several replicas of a Deployment share one claim, which model.cache.accessModes allows on one node only; use [ReadWriteMany], name one node with nodeSelector kubernetes.io/hostname, or use kind=StatefulSet for one claim each.\n" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "weir.check.rollout" -}}
{{- if gt (include "weir.gpuCount" . | int) 1 -}}
{{- fail (printf "\n\nvalues: gpu.count is %s, but a replica computes on one GPU; the others would idle. Set replicaCount instead.\n" (include "weir.gpuCount" .)) -}}
{{- end -}}
{{- $s := .Values.strategy -}}
{{- $type := "RollingUpdate" -}}
{{- if $s -}}
{{- $type = $s.type | default $type -}}
{{- end -}}
{{- if and $s (hasKey ($s | default dict) "rollingUpdate") (ne $type "RollingUpdate") -}}
{{- fail (printf "\n\nvalues: strategy.rollingUpdate goes with type RollingUpdate only; with %s remove it.\n" $type) -}}
{{- end -}}
{{- $types := ternary (list "RollingUpdate" "Recreate") (list "RollingUpdate" "OnDelete") (eq .Values.kind "Deployment") -}}
{{- if not (has $type $types) -}}
{{- fail (printf "\n\nvalues: strategy.type of a %s is %s, not %s.\n" .Values.kind (join " or " $types) $type) -}}
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
{{- if and $tls.certManager.enabled (not (get ($tls.certManager.issuerRef | default dict) "name")) -}}
{{- fail "\n\nvalues: tls.certManager.enabled needs tls.certManager.issuerRef.name.\n" -}}
{{- end -}}
{{- if and .Values.auth.enabled (not .Values.auth.tokensSecretName) -}}
{{- fail "\n\nvalues: auth.enabled needs auth.tokensSecretName, a Secret with one token a line.\n" -}}
{{- end -}}
{{- $side := .Values.sidecar -}}
{{- $always := eq (toString $side.admissionPolicy) "true" -}}
{{- if and (not $side.enabled) (or $side.readinessGate.enabled $always) -}}
{{- fail "\n\nvalues: sidecar.readinessGate and sidecar.admissionPolicy need sidecar.enabled=true; nothing else could open the gate.\n" -}}
{{- end -}}
{{- if and (include "weir.usesApi" .) (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) -}}
{{- fail "\n\nvalues: the sidecar needs a ServiceAccount of its own: set serviceAccount.create=true or serviceAccount.name, or sidecar.enabled=false.\n" -}}
{{- end -}}
{{- if and $always $side.enabled (not (include "weir.usesApi" .)) -}}
{{- fail "\n\nvalues: sidecar.admissionPolicy=true has nothing to hold: without the readiness gate and the deletion cost the sidecar has no token.\n" -}}
{{- end -}}
{{- if and $always (not .Values.rbac.create) -}}
{{- fail "\n\nvalues: sidecar.admissionPolicy=true needs rbac.create=true.\n" -}}
{{- end -}}
{{- if and $always (semverCompare "<1.30.0-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "\n\nvalues: sidecar.admissionPolicy needs Kubernetes 1.30, this is %s.\n" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- end -}}

{{- define "weir.check.scaling" -}}
{{- $scale := .Values.autoscaling -}}
{{- if $scale.enabled -}}
{{- if gt (int64 $scale.minReplicas) (int64 $scale.maxReplicas) -}}
{{- fail (printf "\n\nvalues: autoscaling.minReplicas (%d) is more than autoscaling.maxReplicas (%d).\n" (int64 $scale.minReplicas) (int64 $scale.maxReplicas)) -}}
{{- end -}}
{{- if and (eq $scale.type "hpa") (lt (int64 $scale.minReplicas) 1) -}}
{{- fail "\n\nvalues: autoscaling.minReplicas=0 needs autoscaling.type=keda.\n" -}}
{{- end -}}
{{- if and (kindIs "invalid" $scale.queuedTokensPerPod) (kindIs "invalid" $scale.kvUse) (not $scale.extraMetrics) -}}
{{- fail "\n\nvalues: autoscaling.enabled needs one of autoscaling.queuedTokensPerPod, autoscaling.kvUse and autoscaling.extraMetrics.\n" -}}
{{- end -}}
{{- if and (eq $scale.type "keda") (not $scale.keda.prometheusAddress) -}}
{{- fail "\n\nvalues: autoscaling.type=keda needs autoscaling.keda.prometheusAddress.\n" -}}
{{- end -}}
{{- end -}}
{{- end -}}
