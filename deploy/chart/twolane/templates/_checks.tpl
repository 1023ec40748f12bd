{{- /* What a schema cannot say. */ -}}
{{- define "twolane.check" -}}
{{- if lt (int .Values.terminationGracePeriodSeconds) (add (int .Values.drainSeconds) 11 | int) }}
{{- fail (printf "terminationGracePeriodSeconds is %v and drainSeconds %v: it must be at least 11 more, or requests are cut off" .Values.terminationGracePeriodSeconds .Values.drainSeconds) }}
{{- end }}
{{- $titles := list }}
{{- range .Values.pools }}
{{- $titles = append $titles (.name | default (ternary "colocated" .role (eq .role "both"))) }}
{{- end }}
{{- $names := list "router" }}
{{- range $set := .Values.hostSets }}
{{- if has $set.name $names }}
{{- fail (printf "hostSets: %s is the name of other pods already" $set.name) }}
{{- end }}
{{- $names = append $names $set.name }}
{{- if gt (int $set.replicas) (int $set.most) }}
{{- fail (printf "hostSets: %s has %v replicas, but at most %v" $set.name $set.replicas $set.most) }}
{{- end }}
{{- $isExact := or (ne $.Values.executor "keda") $.Values.keda.zeroTolerance }}
{{- if and (gt (int $set.most) 9) (not $isExact) }}
{{- fail (printf "hostSets: %s has at most %v pods; an HPA ignores changes of 10 %%, so from 10 pods KEDA needs keda.zeroTolerance" $set.name $set.most) }}
{{- end }}
{{- if and (eq $.Values.mode "kuberay") (ne $.Values.tls.mode "none") (has $set.name $titles) }}
{{- fail (printf "hostSets: %s is the name of a pool, too: its hosts and workers would share certificates" $set.name) }}
{{- end }}
{{- range $set.pools }}
{{- if not (has . $titles) }}
{{- fail (printf "hostSets: %s names the pool %s, which is none of %s" $set.name . (join ", " $titles)) }}
{{- end }}
{{- end }}
{{- end }}
{{- $looks := or (ne .Values.monitoring.targets "none") (eq .Values.executor "keda") }}
{{- if and $looks (eq .Values.tls.mode "secret") (not .Values.tls.viewerSecret) }}
{{- fail "tls.viewerSecret: with TLS, Prometheus and KEDA need the certificate of a viewer" }}
{{- end }}
{{- end }}
