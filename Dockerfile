FROM python:3.12-slim

COPY pyproject.toml README.md LICENSE /build/
COPY src /build/src
RUN pip install --no-cache-dir /build && rm -r /build \
    && useradd --system --uid 1000 remuda && mkdir /data && chown remuda /data

USER remuda
VOLUME /data
EXPOSE 5672
STOPSIGNAL SIGTERM
ENTRYPOINT ["remuda", "serve", "--data", "/data"]
CMD ["--listen", "0.0.0.0:5672", "--users", "/users.toml"]
