# The one executable, static, and nothing else: agent, loader of weights, proxy, relay and orchestrator of docs/kubernetes.md.
# `tests/static.sh` holds an executable that is built like this one to what is promised here, without a container runtime.
#   docker buildx build --platform linux/amd64,linux/arm64 -t REGISTRY/dunlin:TAG .
FROM docker.io/library/rust:1.95-slim-bookworm AS build
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends musl-tools >/dev/null
WORKDIR /src
COPY . .
# The executable of the machine that builds; buildx emulates, or has one for each platform.
RUN target=$(uname -m)-unknown-linux-musl && rustup target add "$target" \
 && cargo build --locked --profile dist --bin dunlin --target "$target" \
 && install -D "target/$target/dist/dunlin" /root/out/dunlin

FROM scratch
COPY --from=build /root/out/dunlin /dunlin
# It writes below DUNLIN_HOME only, which is a volume: the root may be read-only.
ENV DUNLIN_HOME=/state
USER 65532:65532
ENTRYPOINT ["/dunlin"]
