# Images of weir. Targets: cuda (the default), cpu, and sidecar, which has no torch.
# BASE is any Debian or Ubuntu with Python 3.11 or later; the CUDA libraries come with torch.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS base
ARG DEBIAN_FRONTEND=noninteractive
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3 \
    && apt-get clean \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv --without-pip /opt/venv \
    && groupadd --gid 10001 weir \
    && useradd --uid 10001 --gid weir --home-dir /cache --no-create-home --shell /usr/sbin/nologin weir \
    && install --directory --owner=weir --group=weir /cache /models /run/weir
ENV PATH=/opt/app/bin:/opt/venv/bin:$PATH \
    PYTHONPATH=/opt/app \
    PYTHONUNBUFFERED=1 \
    HOME=/cache \
    XDG_CACHE_HOME=/cache

# What no image keeps: a compiler, and pip, which is mounted where something is installed into /opt/venv.
FROM base AS build
ARG DEBIAN_FRONTEND=noninteractive
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/pip
WORKDIR /src

# The lists change when a dependency does, not with every edit of pyproject.toml, and those of torch only with torch:
# the layers that are made from them stay.
FROM build AS lists
COPY pyproject.toml requirements/constraints.txt scripts/list_requirements.py ./
RUN mkdir /lists \
    && cp constraints.txt /lists \
    && grep '^torch==' constraints.txt >/lists/torch.txt \
    && grep -E '^(triton==|cuda-|nvidia-)' constraints.txt >/lists/cuda-libraries.txt \
    && python3 list_requirements.py server fetch >/lists/cuda.txt \
    && python3 list_requirements.py server fetch --without triton >/lists/cpu.txt \
    && python3 list_requirements.py sidecar >/lists/sidecar.txt

# The code: the package, the generated stubs, and the CPU kernels compiled for all instruction sets.
FROM build AS code
COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY proto proto
COPY kernels kernels
COPY service service
RUN /opt/pip/bin/pip --python /opt/venv/bin/python install --no-cache-dir --no-deps --target /opt/app . \
    && python3 /opt/app/weir_kernels/cpu/build.py

# Of the Kubernetes client only what the sidecar calls is kept: all of it is more than the rest of the image.
FROM base AS sidecar
COPY --from=lists /lists/constraints.txt /lists/sidecar.txt /opt/lists/
COPY scripts/prune_kubernetes.py /opt/lists/
RUN --mount=type=bind,from=build,source=/opt/pip,target=/opt/pip \
    /opt/pip/bin/pip --python /opt/venv/bin/python install --no-cache-dir \
        -c /opt/lists/constraints.txt -r /opt/lists/sidecar.txt \
    && /opt/venv/bin/python /opt/lists/prune_kubernetes.py CoreV1Api \
    && /opt/pip/bin/pip --python /opt/venv/bin/python uninstall --yes \
        aiohttp aiohttp-retry aiohappyeyeballs aiosignal attrs frozenlist multidict propcache yarl
COPY --from=code /opt/app /opt/app
ARG BASE
ARG VERSION=
ARG REVISION=
LABEL org.opencontainers.image.title="weir-sidecar" \
      org.opencontainers.image.description="Drain and pod deletion cost beside a weir server" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${BASE}"
USER 10001:10001
ENTRYPOINT ["weir"]
CMD ["sidecar"]

# Three layers by how often they change: torch, the other packages, the code. TORCH_INDEX is an index for torch alone:
# such an index has few other packages, and other versions of them than the pinned ones.
FROM base AS cpu
COPY --from=lists /lists/torch.txt /opt/lists/
ARG TORCH_INDEX=
RUN --mount=type=bind,from=build,source=/opt/pip,target=/opt/pip \
    /opt/pip/bin/pip --python /opt/venv/bin/python install --no-cache-dir --no-deps \
        ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} -r /opt/lists/torch.txt \
    && if grep -E '^Requires-Dist: (cuda|nvidia)' /opt/venv/lib/python3*/site-packages/torch-*.dist-info/METADATA; then \
         echo "this torch is built for CUDA: name an index with CPU builds, --build-arg TORCH_INDEX=...," \
           "or build the target cuda, which runs on a CPU too" >&2; \
         exit 1; \
       fi
COPY --from=lists /lists/constraints.txt /lists/cpu.txt /opt/lists/
RUN --mount=type=bind,from=build,source=/opt/pip,target=/opt/pip \
    /opt/pip/bin/pip --python /opt/venv/bin/python install --no-cache-dir \
        -c /opt/lists/constraints.txt -r /opt/lists/cpu.txt
COPY --from=code /opt/app /opt/app
ARG BASE
ARG VERSION=
ARG REVISION=
LABEL org.opencontainers.image.title="weir-cpu" \
      org.opencontainers.image.description="LLM inference over gRPC, on a CPU" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${BASE}"
USER 10001:10001
ENTRYPOINT ["weir"]
CMD ["serve"]

FROM base AS cuda
ARG DEBIAN_FRONTEND=noninteractive
# Triton compiles a small launcher for each kernel: it needs a C compiler and Python's headers when it runs.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev python3-dev \
    && apt-get clean \
    && rm -rf /var/lib/apt/lists/*
ENV TRITON_CACHE_DIR=/cache/triton
COPY --from=lists /lists/torch.txt /lists/cuda-libraries.txt /opt/lists/
ARG TORCH_INDEX=
RUN --mount=type=bind,from=build,source=/opt/pip,target=/opt/pip \
    /opt/pip/bin/pip --python /opt/venv/bin/python install --no-cache-dir --no-deps \
        ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} -r /opt/lists/torch.txt \
    && /opt/pip/bin/pip --python /opt/venv/bin/python install --no-cache-dir --no-deps \
        -r /opt/lists/cuda-libraries.txt
COPY --from=lists /lists/constraints.txt /lists/cuda.txt /opt/lists/
RUN --mount=type=bind,from=build,source=/opt/pip,target=/opt/pip \
    /opt/pip/bin/pip --python /opt/venv/bin/python install --no-cache-dir \
        -c /opt/lists/constraints.txt -r /opt/lists/cuda.txt
COPY --from=code /opt/app /opt/app
ARG BASE
ARG VERSION=
ARG REVISION=
LABEL org.opencontainers.image.title="weir" \
      org.opencontainers.image.description="LLM inference over gRPC, on NVIDIA GPUs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${BASE}"
USER 10001:10001
ENTRYPOINT ["weir"]
CMD ["serve"]
