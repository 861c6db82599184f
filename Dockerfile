# The image that the chart runs: docs/howto/install.md.
FROM python:3.13-slim
COPY . /src
# EXTRAS='[forecast]' for the controller's forecasts: 150 MB more.
ARG EXTRAS=""
RUN pip install --no-cache-dir "/src${EXTRAS}" && rm -rf /src
USER 65532:65532
