# Image of the head and GPU nodes: everything, with NCCL for AWS. `make images` builds it from the repository's root.
# torch brings CUDA, cuDNN and NCCL; the driver comes from the host.
FROM ubuntu:noble-20251013

# Ray's launcher copies files into containers with rsync. Triton needs gcc and Python's headers for its launchers.
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        ca-certificates curl g++ gcc libc6-dev openssh-client procps python3.12 python3.12-dev python3.12-venv rsync wget \
    && rm -rf /var/lib/apt/lists/*

# EFA: libfabric and NCCL's plugin. The host has the kernel modules. --build-arg EFA_INSTALLER= omits it.
ARG EFA_INSTALLER=1.44.0
RUN if [ -n "$EFA_INSTALLER" ]; then \
        curl -fsSL "https://efa-installer.amazonaws.com/aws-efa-installer-$EFA_INSTALLER.tar.gz" | tar -xz -C /tmp \
        && cd /tmp/aws-efa-installer \
        && apt-get update \
        && ./efa_installer.sh --yes --skip-kmod --skip-limit-conf --no-verify \
        && rm -rf /tmp/aws-efa-installer /var/lib/apt/lists/*; \
    fi

# User id 1000, like the first user of the hosts. Ray's launcher mounts the files of that user.
RUN userdel --remove ubuntu \
    && useradd --create-home --uid 1000 --user-group cloze \
    && install --directory --owner=cloze --group=cloze /opt/cloze /opt/venv /home/cloze/.ray /shared
USER cloze
ENV HOME=/home/cloze \
    PATH=/opt/venv/bin:$PATH \
    LD_LIBRARY_PATH=/opt/amazon/efa/lib:/opt/amazon/ofi-nccl/lib \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    PYTHONUNBUFFERED=1 \
    RAY_USAGE_STATS_ENABLED=0 \
    TOKENIZERS_PARALLELISM=false
WORKDIR /opt/cloze

COPY --chown=cloze:cloze pyproject.toml constraints.txt README.md LICENSE ./
RUN python3.12 -m venv /opt/venv \
    && pip install --no-cache-dir --disable-pip-version-check -c constraints.txt -e '.[pipeline,ray,trainer,launcher]'
COPY --chown=cloze:cloze . .
RUN pip install --no-cache-dir --disable-pip-version-check --no-deps -e . && pip check
