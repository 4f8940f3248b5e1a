# Image of the head and the submitter on Kubernetes: as for training, with torch for CPUs, without CUDA, EFA and
# compilers. `make images` builds it from the repository's root.
# The arguments name mirrors: a base image, Ubuntu's packages (http://HOST/ubuntu) and the package indexes of pip, the
# second for torch. Where the first is empty, pip takes its own.
ARG BASE=ubuntu:noble-20260905
FROM ${BASE}
ARG APT_MIRROR=
ARG PIP_INDEX_URL=
ARG PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu

# Ray's launcher copies files into containers with rsync. KubeRay's probes call wget where they do not ask by HTTP (Ray
# before 2.53; KubeRay 1.7.0, common/pod.go).
RUN if [ -n "$APT_MIRROR" ]; then sed -i "s|^URIs: .*|URIs: $APT_MIRROR|" /etc/apt/sources.list.d/ubuntu.sources; fi \
    && apt-get update \
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
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PYTHONUNBUFFERED=1 \
    RAY_USAGE_STATS_ENABLED=0 \
    TOKENIZERS_PARALLELISM=false
WORKDIR /opt/cloze

# Every file that pip installs has the hash of the lock. What builds a package comes first, from the lock too.
COPY --chown=cloze:cloze cluster/images/head.txt lock.txt
RUN python3.12 -m venv /opt/venv \
    && grep -E '^(setuptools|wheel|packaging|ninja)==' lock.txt > build.txt \
    && pip install --require-hashes -r build.txt \
    && pip install --require-hashes --no-build-isolation -r lock.txt
COPY --chown=cloze:cloze . .
RUN pip install --no-deps --no-build-isolation -e . && pip check
