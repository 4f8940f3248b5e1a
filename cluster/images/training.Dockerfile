# Image of the GPU nodes, and of the head except on Kubernetes: everything, with NCCL for AWS. `make images` builds it
# from the repository's root. torch brings CUDA, cuDNN and NCCL. The driver comes from the host: 580 or later, for CUDA 13
# (CUDA Toolkit 13.0 Release Notes, "CUDA Driver").
# The arguments name mirrors: a base image, Ubuntu's packages (http://HOST/ubuntu), a package index of pip, and the
# EFA installer.
ARG BASE=ubuntu:noble-20260905
FROM ${BASE}
ARG APT_MIRROR=
ARG PIP_INDEX_URL=

# Ray's launcher copies files into containers with rsync. KubeRay's probes call wget where they do not ask by HTTP (Ray
# before 2.53; KubeRay 1.7.0, common/pod.go). Triton needs gcc and Python's headers for its launchers.
RUN if [ -n "$APT_MIRROR" ]; then sed -i "s|^URIs: .*|URIs: $APT_MIRROR|" /etc/apt/sources.list.d/ubuntu.sources; fi \
    && apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        ca-certificates g++ gcc libc6-dev openssh-client procps python3.12 python3.12-dev python3.12-venv rsync wget \
    && rm -rf /var/lib/apt/lists/*

# EFA: libfabric and NCCL's plugin, which NCCL finds as libnccl-net.so, and which must know CUDA 13
# (aws-ofi-nccl 1.17, commit 0ecdc995; EFA 1.43.3 has 1.16.3). The host has the kernel modules.
# --build-arg EFA_INSTALLER= omits it. The hash is that of AWS's documentation ("Verify the EFA installer").
ARG EFA_INSTALLER=1.44.0
ARG EFA_SHA256=f129a5b44a49d593d247e55a59eb9bcb57121566e1c2e42b832a4e794fa83d8a
ARG EFA_URL=https://efa-installer.amazonaws.com
RUN mkdir /opt/nccl-plugins && if [ -n "$EFA_INSTALLER" ]; then \
        wget -q -O /tmp/efa.tar.gz "$EFA_URL/aws-efa-installer-$EFA_INSTALLER.tar.gz" \
        && echo "$EFA_SHA256  /tmp/efa.tar.gz" | sha256sum --check --quiet \
        && tar -xzf /tmp/efa.tar.gz -C /tmp \
        && cd /tmp/aws-efa-installer \
        && apt-get update \
        && ./efa_installer.sh --yes --skip-kmod --skip-limit-conf --no-verify \
        && rm -rf /tmp/aws-efa-installer /tmp/efa.tar.gz /var/lib/apt/lists/* \
        && plugin=$(find /opt/amazon/ofi-nccl -name libnccl-net-ofi.so -o -name libnccl-net.so | sort | head -n 1) \
        && test -n "$plugin" \
        && ln -s "$plugin" /opt/nccl-plugins/libnccl-net.so; \
    fi

# User id 1000, like the first user of the hosts. Ray's launcher mounts the files of that user.
RUN userdel --remove ubuntu \
    && useradd --create-home --uid 1000 --user-group cloze \
    && install --directory --owner=cloze --group=cloze /opt/cloze /opt/venv /home/cloze/.ray /shared
USER cloze
# GKE mounts the driver's files at /usr/local/nvidia (container-engine-accelerators, cmd/nvidia_gpu/nvidia_gpu.go);
# elsewhere NVIDIA's container toolkit puts them into the system's folders. Up to 1.17 it refuses a driver that is too old
# for NVIDIA_REQUIRE_CUDA; later ones do so in mode legacy only (nvidia-container-toolkit 1.20, internal/info/auto.go).
ENV HOME=/home/cloze \
    PATH=/opt/venv/bin:$PATH:/usr/local/nvidia/bin \
    LD_LIBRARY_PATH=/usr/local/nvidia/lib64:/opt/nccl-plugins:/opt/amazon/efa/lib:/opt/venv/lib \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    NVIDIA_REQUIRE_CUDA="cuda>=13.0" \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PYTHONUNBUFFERED=1 \
    RAY_USAGE_STATS_ENABLED=0 \
    TOKENIZERS_PARALLELISM=false
WORKDIR /opt/cloze

# Every file that pip installs has the hash of the lock. What builds a package comes first, from the lock too. NCCL's plugin
# for EFA opens libcudart.so, of which torch brings only the numbered name (aws-ofi-nccl 1.17.1, src/nccl_ofi_cuda.cpp).
COPY --chown=cloze:cloze cluster/images/training.txt lock.txt
RUN python3.12 -m venv /opt/venv \
    && grep -E '^(setuptools|wheel|packaging|ninja)==' lock.txt > build.txt \
    && pip install --require-hashes -r build.txt \
    && pip install --require-hashes --no-build-isolation -r lock.txt \
    && ln -s "$(find /opt/venv -name 'libcudart.so.1?' | head -n 1)" /opt/venv/lib/libcudart.so
COPY --chown=cloze:cloze . .
RUN pip install --no-deps --no-build-isolation -e . && pip check
