{{- define "twolane.labels" -}}
app.kubernetes.io/name: twolane
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* Of all pods of this release. */ -}}
{{- define "twolane.selector" -}}
app.kubernetes.io/name: twolane
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "twolane.image" -}}
{{- $its := index .root.Values.image .of -}}
image: "{{ $its.repository }}:{{ $its.tag | default .root.Chart.AppVersion }}"
imagePullPolicy: {{ $its.pullPolicy }}
{{- end }}

{{- define "twolane.podSecurity" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .Values.podSecurity.runAsUser }}
  runAsGroup: {{ .Values.podSecurity.runAsGroup }}
  fsGroup: {{ .Values.podSecurity.fsGroup }}
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "twolane.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- /* The DNS name of a pod of a StatefulSet: dict root name */ -}}
{{- define "twolane.podHost" -}}
{{ .name }}.{{ .root.Release.Name }}-hosts.{{ .root.Release.Namespace }}.svc.{{ .root.Values.clusterDomain }}
{{- end }}

{{- define "twolane.tlsFlags" -}}
{{- if eq .Values.tls.mode "none" }}
- --insecure
{{- else }}
- --tls-ca=/etc/twolane/tls/ca.crt
- --tls-cert=/etc/twolane/tls/{name}.crt
- --tls-key=/etc/twolane/tls/{name}.key
{{- end }}
{{- end }}

{{- define "twolane.mounts" -}}
- {name: state, mountPath: /var/lib/twolane}
- {name: tmp, mountPath: /tmp}
- {name: cache, mountPath: /var/cache/twolane}
- {name: secret, mountPath: /etc/twolane/secret, readOnly: true}
{{- if ne .Values.tls.mode "none" }}
- {name: tls, mountPath: /etc/twolane/tls, readOnly: true}
{{- end }}
{{- if .Values.model.claim }}
- {name: model, mountPath: {{ .Values.model.mountPath | quote }}, readOnly: true}
{{- end }}
{{- end }}

{{- /* dict root names: the processes whose certificates the pod has */ -}}
{{- define "twolane.volumes" -}}
- name: state
  emptyDir: {sizeLimit: {{ .root.Values.stateSize }}}
- name: tmp
  emptyDir: {sizeLimit: {{ .root.Values.stateSize }}}
- name: cache
  emptyDir: {sizeLimit: {{ .root.Values.cacheSize }}}
- name: secret
  secret: {secretName: {{ .root.Values.clusterSecret }}, defaultMode: 0440}
{{- if ne .root.Values.tls.mode "none" }}
- name: tls
  projected:
    defaultMode: 0440
    sources:
      {{- range $i, $name := .names }}
      {{- if eq $.root.Values.tls.mode "certManager" }}
      - secret:
          name: {{ $.root.Release.Name }}-tls-{{ $name }}
          items:
            {{- if eq $i 0 }}
            - {key: ca.crt, path: ca.crt}
            {{- end }}
            - {key: tls.crt, path: {{ $name }}.crt}
            - {key: tls.key, path: {{ $name }}.key}
      {{- else }}
      - secret:
          name: {{ $.root.Values.tls.secretName }}
          items:
            {{- if eq $i 0 }}
            - {key: ca.crt, path: ca.crt}
            {{- end }}
            - {key: {{ $name }}.crt, path: {{ $name }}.crt}
            - {key: {{ $name }}.key, path: {{ $name }}.key}
      {{- end }}
      {{- end }}
{{- end }}
{{- if .root.Values.model.claim }}
- name: model
  persistentVolumeClaim: {claimName: {{ .root.Values.model.claim }}, readOnly: true}
{{- end }}
{{- end }}

{{- define "twolane.env" -}}
- {name: HOME, value: /var/lib/twolane}
- {name: TWOLANE_SECRET_FILE, value: /etc/twolane/secret/secret}
- {name: TRITON_CACHE_DIR, value: /var/cache/twolane/triton}
{{- end }}

{{- define "twolane.agentArgs" -}}
- -m
- twolane.deploy
- agent
- --host-name=$(POD_NAME)
- --host-uid=$(POD_UID)
- --listen=0.0.0.0:7210
- --state-dir=/var/lib/twolane/agent
- --drain-s={{ .Values.drainSeconds }}
{{- include "twolane.tlsFlags" . }}
{{- end }}

{{- define "twolane.podEnv" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_UID
  valueFrom: {fieldRef: {fieldPath: metadata.uid}}
{{ include "twolane.env" . }}
{{- end }}

{{- /* The agent, never the engine: a slow step must not kill requests. */ -}}
{{- define "twolane.agentLives" -}}
exec:
  command: [sh, -c, test -n "$(find /var/lib/twolane/agent/heartbeat -newermt '-30 seconds')"]
{{- end }}

{{- /* The names of all workers that the pools of a host set may have: dict root set; JSON */ -}}
{{- define "twolane.workerNames" -}}
{{- $names := list -}}
{{- range $pool := .root.Values.pools -}}
{{- $title := $pool.name | default (ternary "colocated" $pool.role (eq $pool.role "both")) -}}
{{- if or (eq $.root.Values.executor "none") (has $title $.set.pools) -}}
{{- range $i := until (int (include "twolane.mostWorkers" (dict "root" $.root "pool" $pool))) -}}
{{- $names = append $names (printf "%s-%d" $title $i) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $names | toJson -}}
{{- end }}

{{- /* The most workers that a pool may come to have: dict root pool */ -}}
{{- define "twolane.mostWorkers" -}}
{{- $most := int .pool.workers -}}
{{- if ne .root.Values.executor "none" -}}
{{- $room := 0 -}}
{{- range .root.Values.hostSets -}}
{{- $room = add $room (mul (int .most) (ternary (int .gpus) (int .seats) (gt (int .gpus) 0))) -}}
{{- end -}}
{{- $most = max $most $room -}}
{{- end -}}
{{- $most -}}
{{- end }}

{{- /* Not empty: routers are pods of their own. Else one is on Ray's head. */ -}}
{{- define "twolane.routersApart" -}}
{{- if or (eq .Values.mode "plain") (not .Values.ray.head.router) -}}yes{{- end -}}
{{- end }}

{{- /* The name of a host set's hosts, before their numbers: dict root set */ -}}
{{- define "twolane.hostsTitle" -}}
{{- if eq .root.Values.mode "plain" -}}{{ .root.Release.Name }}-{{- end -}}{{ .set.name }}
{{- end }}

{{- define "twolane.scrapeTls" }}
ca: {secret: {name: {{ . }}, key: ca.crt}}
cert: {secret: {name: {{ . }}, key: tls.crt}}
keySecret: {name: {{ . }}, key: tls.key}
insecureSkipVerify: true  # a process has the name of its role, not of its address
{{- end }}

{{- define "twolane.viewerSecret" -}}
{{- if eq .Values.tls.mode "certManager" -}}
{{ .Release.Name }}-tls-viewer
{{- else -}}
{{ .Values.tls.viewerSecret }}
{{- end -}}
{{- end }}

{{- /* The ports of an address, a URL or HOST:PORT,HOST:PORT: dict address default; JSON */ -}}
{{- define "twolane.portsOf" -}}
{{- $ports := list -}}
{{- $hosts := regexReplaceAll "[/?#].*$" (regexReplaceAll "^[a-z+]+://" .address "") "" -}}
{{- range splitList "," (regexReplaceAll "^.*@" $hosts "") -}}
{{- $port := regexFind ":[0-9]+$" . | trimPrefix ":" | default $.default -}}
{{- $ports = append $ports (int $port) -}}
{{- end -}}
{{- $ports | toJson -}}
{{- end }}

{{- /* The ports outside this cluster that its routers dial; JSON */ -}}
{{- define "twolane.portsOutside" -}}
{{- $ports := list -}}
{{- with .Values.router.store -}}
{{- $sentinels := contains "+sentinel://" . -}}
{{- $default := ternary 26379 6379 $sentinels -}}
{{- $ports = concat $ports (include "twolane.portsOf" (dict "address" . "default" $default) | fromJsonArray) -}}
{{- if $sentinels -}}
{{- $ports = append $ports 6379 -}}{{- /* of the Redis that they name */ -}}
{{- end -}}
{{- end -}}
{{- with .Values.router.options.otlp_endpoint -}}
{{- $ports = concat $ports (include "twolane.portsOf" (dict "address" . "default" 443) | fromJsonArray) -}}
{{- end -}}
{{- $ports | toJson -}}
{{- end }}

{{- /* The same, of Ray's head; JSON */ -}}
{{- define "twolane.portsOfRay" -}}
{{- if and (eq .Values.mode "kuberay") .Values.ray.redisAddress -}}
{{- include "twolane.portsOf" (dict "address" .Values.ray.redisAddress "default" 6379) -}}
{{- else -}}
[]
{{- end -}}
{{- end }}
