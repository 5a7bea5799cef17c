# The pinned set with every extra. For CUDA: docker build --build-arg TORCH_BACKEND=cu130 .
# Real recordings for the tests that want them: docker run --rm --volume DIR:/data --env SEPKIT_DATA=/data sepkit
FROM python:3.11-slim-bookworm

# g++ compiles pesq, which has no wheel.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ git make \
    && rm -rf /var/lib/apt/lists/*

ARG TORCH_BACKEND=cpu
ENV UV_TORCH_BACKEND=$TORCH_BACKEND

WORKDIR /sepkit
COPY . .
RUN make install

ENV PATH=/sepkit/.venv/bin:$PATH
CMD ["make", "test"]
