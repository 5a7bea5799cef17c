# Two images. The runtime separates, and nothing else is in it:
#   docker build --target runtime --tag sepkit .
#   docker run --rm --volume "$PWD:/data" sepkit separate /data/talk.m4a --out /data/separated
# The other runs the tests with every extra:
#   docker build --target test --tag sepkit-test . && docker run --rm sepkit-test
# Real recordings for the tests that want them: docker run --rm --volume DIR:/data --env SEPKIT_DATA=/data sepkit-test
# Models in torch: --build-arg EXTRAS=torch. On CUDA: also TORCH_BACKEND=cu130, and docker run --gpus all. For training:
# --build-arg EXTRAS=demo.
ARG PYTHON=3.11

FROM python:${PYTHON}-slim-bookworm AS base
ARG TORCH_BACKEND=cpu
ENV UV_TORCH_BACKEND=$TORCH_BACKEND PIP_NO_CACHE_DIR=1 UV_NO_CACHE=1
RUN pip install uv

FROM base AS build
ARG EXTRAS=
WORKDIR /build
COPY . .
RUN uv venv /opt/sepkit \
    && uv pip install --python /opt/sepkit --constraint tools/constraints.txt ".${EXTRAS:+[$EXTRAS]}"

FROM python:${PYTHON}-slim-bookworm AS runtime
# ffmpeg reads m4a, mp4, webm and their like.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ffmpeg \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home sepkit
COPY --from=build /opt/sepkit /opt/sepkit
ENV PATH=/opt/sepkit/bin:$PATH
USER sepkit
WORKDIR /data
ENTRYPOINT ["sepkit"]
CMD ["--help"]

FROM base AS test
# g++ compiles pesq, which has no wheel.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ffmpeg g++ git make \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /sepkit
COPY . .
RUN make install
ENV PATH=/sepkit/.venv/bin:$PATH
CMD ["make", "test"]
