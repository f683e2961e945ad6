# A slim image that runs the shell: docker build -t dmtrl . && docker run --rm -v "$PWD:/data" dmtrl fit data.csv ...
# Further extras: docker build --build-arg EXTRAS=frames,report,ray -t dmtrl .
FROM python:3.13-slim AS build
RUN pip install --no-cache-dir "build>=1.2" "hatchling>=1.27"
COPY pyproject.toml README.md LICENSE /source/
COPY src /source/src
RUN python -m build --no-isolation --wheel --outdir /wheels /source

FROM python:3.13-slim
ARG EXTRAS=frames,report
COPY constraints.txt /tmp/constraints.txt
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir "$(ls /wheels/*.whl)[$EXTRAS]" -c /tmp/constraints.txt \
    && rm /tmp/constraints.txt \
    && useradd --create-home dmtrl && mkdir /data && chown dmtrl /data
USER dmtrl
ENV NUMBA_CACHE_DIR=/home/dmtrl/.cache/numba
# Compile the kernels of the usual losses once, so that the first fit does not wait for them.
RUN python -c "import numpy as np, dmtrl; X = np.random.default_rng(0).normal(size=(40, 3)); t = [0, 1] * 20; \
    dmtrl.MTRLRegressorCV(cv=2).fit(X, X[:, 0], tasks=t); dmtrl.MTRLClassifierCV(cv=2).fit(X, X[:, 0] > 0, tasks=t)"
WORKDIR /data
ENTRYPOINT ["dmtrl"]
CMD ["--help"]
