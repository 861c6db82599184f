# The image that the chart runs: docs/howto/install.md.
FROM python:3.13-slim
COPY . /src
RUN pip install --no-cache-dir /src && rm -rf /src
USER 65532:65532
