# Images of weir. Targets: cuda (the default), cpu, and sidecar, which has no torch.
# BASE is any Debian or Ubuntu with Python 3.11 or later; the CUDA libraries come with torch.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS base
ARG DEBIAN_FRONTEND=noninteractive
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3 \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 weir \
    && useradd --uid 10001 --gid weir --home-dir /cache --no-create-home --shell /usr/sbin/nologin weir \
    && install --directory --owner=weir --group=weir /cache /models /run/weir
ENV PATH=/opt/app/bin:/opt/venv/bin:$PATH \
    PYTHONPATH=/opt/app \
    PYTHONUNBUFFERED=1 \
    HOME=/cache \
    XDG_CACHE_HOME=/cache

FROM base AS build
ARG DEBIAN_FRONTEND=noninteractive
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/venv
WORKDIR /src

# The lists change when a dependency does, not with every edit of pyproject.toml: the layers below stay cached.
FROM build AS lists
COPY pyproject.toml requirements/constraints.txt scripts/list_requirements.py ./
RUN mkdir /lists \
    && cp constraints.txt /lists \
    && python3 list_requirements.py server fetch --without torch >/lists/cuda.txt \
    && python3 list_requirements.py server fetch --without torch --without triton >/lists/cpu.txt \
    && python3 list_requirements.py sidecar >/lists/sidecar.txt

# The code: the package, the generated stubs, and the CPU kernels compiled for all instruction sets.
FROM build AS code
COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY proto proto
COPY kernels kernels
COPY service service
RUN pip install --no-cache-dir --no-deps --target /opt/app . \
    && python3 /opt/app/weir_kernels/cpu/build.py

FROM build AS sidecar-packages
COPY --from=lists /lists/constraints.txt /lists/sidecar.txt ./
RUN pip install --no-cache-dir -c constraints.txt -r sidecar.txt

# torch is a layer of its own, the largest one. TORCH_INDEX: a package index with CPU builds of it, where pip's own
# configuration knows none.
FROM build AS cpu-packages
ARG TORCH_INDEX=
COPY --from=lists /lists/constraints.txt /lists/cpu.txt ./
RUN pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} -c constraints.txt torch
# hadolint ignore=DL3059
RUN pip install --no-cache-dir -c constraints.txt -r cpu.txt

FROM build AS cuda-packages
ARG TORCH_INDEX=
COPY --from=lists /lists/constraints.txt /lists/cuda.txt ./
RUN pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} -c constraints.txt torch
# hadolint ignore=DL3059
RUN pip install --no-cache-dir -c constraints.txt -r cuda.txt

FROM base AS sidecar
COPY --from=sidecar-packages /opt/venv /opt/venv
COPY --from=code /opt/app /opt/app
USER 10001:10001
ENTRYPOINT ["weir"]
CMD ["sidecar"]

FROM base AS cpu
COPY --from=cpu-packages /opt/venv /opt/venv
COPY --from=code /opt/app /opt/app
USER 10001:10001
ENTRYPOINT ["weir"]
CMD ["serve"]

FROM base AS cuda
ARG DEBIAN_FRONTEND=noninteractive
# Triton compiles a small launcher for each kernel: it needs a C compiler and Python's headers when it runs.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev python3-dev \
    && rm -rf /var/lib/apt/lists/*
ENV TRITON_CACHE_DIR=/cache/triton
COPY --from=cuda-packages /opt/venv /opt/venv
COPY --from=code /opt/app /opt/app
USER 10001:10001
ENTRYPOINT ["weir"]
CMD ["serve"]
