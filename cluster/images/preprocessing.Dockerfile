# Image of the CPU nodes: Beam, Dask and Ray, without torch. `make images` builds it from the repository's root.
FROM ubuntu:noble-20251013

# Ray's launcher copies files into containers with rsync.
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        ca-certificates openssh-client procps python3.12 python3.12-venv rsync wget \
    && rm -rf /var/lib/apt/lists/*

# User id 1000, like the first user of the hosts. Ray's launcher mounts the files of that user.
RUN userdel --remove ubuntu \
    && useradd --create-home --uid 1000 --user-group cloze \
    && install --directory --owner=cloze --group=cloze /opt/cloze /opt/venv /home/cloze/.ray /shared
USER cloze
ENV HOME=/home/cloze \
    PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    RAY_USAGE_STATS_ENABLED=0 \
    TOKENIZERS_PARALLELISM=false
WORKDIR /opt/cloze

COPY --chown=cloze:cloze pyproject.toml constraints.txt README.md LICENSE ./
RUN python3.12 -m venv /opt/venv \
    && pip install --no-cache-dir --disable-pip-version-check -c constraints.txt -e '.[pipeline,ray]'
COPY --chown=cloze:cloze . .
RUN pip install --no-cache-dir --disable-pip-version-check --no-deps -e . && pip check
