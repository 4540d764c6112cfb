"""Ray under vLLM's CPU engine, whose platform names no Ray resource: here it is a device that nobody has."""

import os

DEVICE = "HPU"


def allow():
    """In each process of the engine."""
    from vllm.platforms.cpu import CpuPlatform

    CpuPlatform.ray_device_key = DEVICE


def start():
    """A cluster of this machine, whose workers call `allow` first."""
    import ray

    allow()
    ray.init(
        num_cpus=2,
        resources={DEVICE: 2},
        include_dashboard=False,
        runtime_env={"env_vars": dict(os.environ), "worker_process_setup_hook": "ray_on_cpu.allow"},
    )
