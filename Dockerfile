# whet and vLLM for an NVIDIA GPU. docs/docker.md says how to build and run it.
# Not built here: there is no container engine on the machines that test this project.
FROM vllm/vllm-openai:v0.33.0
SHELL ["/bin/bash", "-o", "pipefail", "-c"]

COPY . /opt/whet
# The build fails where whet would replace a package that vLLM was released with.
RUN uv pip freeze --system | grep -F == >/tmp/image.txt \
    && uv pip install --system --break-system-packages --no-cache \
        --constraint /tmp/image.txt /opt/whet \
    && rm /tmp/image.txt \
    && install -d -o vllm -g 0 -m 775 /work

# The image's own user `vllm`; its home is writable for every user of group 0.
ENV HOME=/home/vllm USER=vllm
USER 2000:0
WORKDIR /work
ENTRYPOINT ["whet"]
