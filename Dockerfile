# Two images of one wheel:
#   docker build --target client -t splitrelay:client .     joins a run; without torch, for the fast engine
#   docker build --target server -t splitrelay:server .     serves one; also for clients that need torch
# Clients need torch on the reference engine, and peer to peer, where the first of them makes x_c^0 from the seed.
ARG PYTHON=python:3.11-slim

FROM ${PYTHON} AS wheel
WORKDIR /source
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src src
# The fast engine is compiled here, by the compiler that comes as a wheel.
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM ${PYTHON} AS client
COPY --from=wheel /wheels /wheels
COPY constraints.txt /wheels/
RUN pip install --no-cache-dir --constraint /wheels/constraints.txt "$(ls /wheels/*.whl)[join]"
# Whoever runs it should be the owner of the keys it is given: docker run --user, or compose.yaml.
USER 10001:10001
WORKDIR /run-directory
ENV PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 HOME=/scratch TMPDIR=/scratch MPLCONFIGDIR=/scratch SPLITRELAY_DATA=/sets
ENTRYPOINT ["splitrelay"]
CMD ["--help"]

FROM client AS server
USER 0:0
# --build-arg TORCH_INDEX=... names PyTorch's own index of CPU wheels; without it torch comes with gigabytes for GPUs.
ARG TORCH_INDEX
RUN pip install --no-cache-dir ${TORCH_INDEX:+--extra-index-url "${TORCH_INDEX}"} \
    --constraint /wheels/constraints.txt torch scikit-learn
USER 10001:10001
EXPOSE 7443
