# Two images. The runtime separates, and nothing else is in it:
#   docker build --target runtime --tag sepkit .
#   docker run --rm --user "$(id -u):$(id -g)" --volume "$PWD:/data" sepkit separate talk.m4a --out separated
# The other runs the tests with every extra:
#   docker build --target test --tag sepkit-test . && docker run --rm sepkit-test
# Real recordings for the tests that want them: docker run --rm --volume DIR:/data --env SEPKIT_DATA=/data sepkit-test
# Models in torch: --build-arg EXTRAS=torch. On CUDA: also TORCH_BACKEND=cu130, and docker run --gpus all. For training:
# --build-arg EXTRAS=demo.
ARG PYTHON=3.11.14

FROM python:${PYTHON}-slim-bookworm AS base
ARG TORCH_BACKEND=cpu
ENV UV_TORCH_BACKEND=$TORCH_BACKEND PIP_NO_CACHE_DIR=1 UV_NO_CACHE=1
COPY tools/constraints.txt /constraints.txt
RUN pip install --constraint /constraints.txt uv

FROM base AS build
ARG EXTRAS=
WORKDIR /build
# What is installed depends on these files alone: an edit of anything else leaves the layer with torch as it is.
COPY pyproject.toml ./
RUN uv venv /opt/sepkit \
    && uv pip install --python /opt/sepkit --requirements pyproject.toml --constraint /constraints.txt \
        ${EXTRAS:+--extra "$EXTRAS"}
COPY . .
RUN uv pip install --python /opt/sepkit --no-deps .

FROM python:${PYTHON}-slim-bookworm AS runtime
# ffmpeg reads m4a, mp4, webm and their like; Debian's repairs of it are wanted, so that it has no version here.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ffmpeg \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 sepkit
COPY --from=build /opt/sepkit /opt/sepkit
# Any user may run it (--user): caches go where everybody may write.
ENV PATH=/opt/sepkit/bin:$PATH XDG_CACHE_HOME=/tmp/cache HOME=/tmp
USER 1000:1000
WORKDIR /data
ENTRYPOINT ["sepkit"]
CMD ["--help"]

FROM base AS test
# g++ compiles pesq, which has no wheel.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends espeak-ng ffmpeg g++ git make \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /sepkit
COPY pyproject.toml ./
RUN python -m venv .venv \
    && uv pip install --python .venv/bin/python --requirements pyproject.toml --constraint /constraints.txt --extra all
COPY . .
RUN make install
ENV PATH=/sepkit/.venv/bin:$PATH
CMD ["make", "test"]
