#!/usr/bin/env bash
# natlab.sh INSIDE NAT OUTSIDE: three network namespaces with these names.
#
#   INSIDE 10.77.1.2 -- 10.77.1.1 NAT 203.0.113.1 -- 203.0.113.9 OUTSIDE
#
# NAT masquerades and lets in nothing that nobody inside asked for, like a home router.
set -euo pipefail
inside=$1 nat=$2 outside=$3

for host in "$inside" "$nat" "$outside"; do
  ip netns add "$host"
  ip -n "$host" link set lo up
done

link() { # HOST DEVICE ADDRESS  HOST DEVICE ADDRESS
  ip link add "$2" netns "$1" type veth peer name "$5" netns "$4"
  ip -n "$1" addr add "$3" dev "$2"
  ip -n "$4" addr add "$6" dev "$5"
  ip -n "$1" link set "$2" up
  ip -n "$4" link set "$5" up
}
link "$inside" e0 10.77.1.2/24 "$nat" in0 10.77.1.1/24
link "$nat" out0 203.0.113.1/24 "$outside" e0 203.0.113.9/24
ip -n "$inside" route add default via 10.77.1.1

ip netns exec "$nat" sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward'
ip netns exec "$nat" nft -f - <<'RULES'
table ip nat {
  chain post { type nat hook postrouting priority 100; oifname "out0" masquerade; }
}
table ip filter {
  chain forward { type filter hook forward priority 0; policy drop; ct state established,related accept; iifname "in0" accept; }
  chain input { type filter hook input priority 0; policy accept; iifname "out0" ct state new drop; }
}
RULES
