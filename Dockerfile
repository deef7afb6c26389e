# One file for all images:
#   docker build -t stepfence:dev .                              controller, gateway, command line
#   docker build -t stepfence-samples:dev --target samples .     the same, with the example workers and the example provider
#
# BASE is any image with Python >= 3.11, its venv module and CA certificates. The packages come from the lock file, checked by hash.
# An index of one's own, or a private CA, is given as a secret, so that nothing of it stays in a layer:
#   --secret id=pip-conf,src=$HOME/.config/pip/pip.conf   --secret id=ca-bundle,src=/etc/ssl/certs/ca-certificates.crt
ARG BASE=python:3.12-slim

FROM ${BASE} AS build
ARG UV_REQUIREMENT="uv>=0.8,<1"
WORKDIR /src
RUN python3 -m venv /opt/stepfence/venv && python3 -m venv /tools
# Dependencies first: this layer stays while only our own code changes.
COPY pyproject.toml uv.lock ./
RUN --mount=type=secret,id=pip-conf,required=false --mount=type=secret,id=ca-bundle,required=false \
    set -eu; \
    export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore; \
    if [ -s /run/secrets/pip-conf ]; then export PIP_CONFIG_FILE=/run/secrets/pip-conf; fi; \
    if [ -s /run/secrets/ca-bundle ]; then export PIP_CERT=/run/secrets/ca-bundle; fi; \
    /tools/bin/pip install --quiet "${UV_REQUIREMENT}" hatchling; \
    /tools/bin/uv export --quiet --frozen --no-dev --extra operator --no-emit-workspace --output-file /tools/requirements.txt; \
    /opt/stepfence/venv/bin/pip install --quiet --require-hashes --no-deps --only-binary=:all: -r /tools/requirements.txt
COPY README.md LICENSE ./
COPY operator ./operator
RUN set -eu; \
    /tools/bin/python -m hatchling build --target wheel --directory /tools/dist; \
    /opt/stepfence/venv/bin/pip install --quiet --no-index --no-deps --no-cache-dir /tools/dist/stepfence-*.whl; \
    /opt/stepfence/venv/bin/pip uninstall --quiet --yes pip setuptools

FROM ${BASE} AS runtime
LABEL org.opencontainers.image.title="stepfence" \
      org.opencontainers.image.description="Restart-safe AI-agent runs on Kubernetes" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/stepfence /opt/stepfence
# Nothing is written at run time: pip compiled the bytecode, temporary files are not used. The user has a number alone, no line in
# /etc/passwd: libraries that ask for its name and home find them here.
ENV PATH=/opt/stepfence/venv/bin:/usr/local/bin:/usr/bin:/bin \
    USER=stepfence \
    HOME=/opt/stepfence \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /opt/stepfence
# By number, so that a kubelet can see that it is not root.
USER 65532:65532
ENTRYPOINT ["stepfence"]

FROM runtime AS samples
COPY e2e/provider /opt/stepfence/e2e/provider
COPY examples /opt/stepfence/examples
ENTRYPOINT []
CMD ["python", "-m", "e2e.provider"]

# Last, so that it is what a build without --target makes.
FROM runtime AS operator
