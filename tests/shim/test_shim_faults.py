"""What the library does where the driver or the kernel gives less than usual: the paths that a good day never takes."""

from __future__ import annotations

import pytest

LIMIT = {"GPUSHARE_LIMIT": "4Gi"}


def failing(host, *faults: str) -> dict[str, str]:
    return {**LIMIT, "GPUSHARE_SIM": host.environment()["GPUSHARE_SIM"] + ",fail=" + ";".join(faults)}


@pytest.mark.parametrize(
    ("create", "size"),
    [
        ("cuArrayCreate_v2(byref(array), byref(ArrayShape(1024, 100, 0x20, 2)))", 1024 * 128 * 4 * 2),
        ("cuArrayCreate_v2(byref(array), byref(ArrayShape(4096, 0, 0x10, 4)))", 4096 * 8 * 2 * 4),
        ("cuArray3DCreate_v2(byref(array), byref(Array3DShape(512, 256, 64, 0x01, 4, 0)))", 512 * 256 * 64 * 4),
        ("cuArray3DCreate_v2(byref(array), byref(Array3DShape(512, 128, 6, 0x08, 2, 1)))", 512 * 128 * 6 * 2),
        ("cuArray3DCreate_v2(byref(array), byref(Array3DShape(256, 64, 2, 0x03, 1, 0)))", 256 * 64 * 2 * 4),
        (
            "cuMipmappedArrayCreate(byref(array), byref(Array3DShape(1024, 64, 0, 0x10, 4, 0)), 3)",
            (1024 * 64 + 512 * 32 + 256 * 16) * 2 * 4,
        ),
        (
            "cuMipmappedArrayCreate(byref(array), byref(Array3DShape(64, 64, 16, 0x02, 4, 0)), 4)",
            (64 * 64 * 16 + 32 * 32 * 8 + 16 * 16 * 4 + 8 * 8 * 2) * 2 * 4,
        ),
        (
            "cuMipmappedArrayCreate(byref(array), byref(Array3DShape(64, 64, 16, 0x09, 4, 1)), 2)",
            (64 * 64 + 32 * 32) * 16 * 2 * 4,
        ),
    ],
)
def test_an_array_of_which_the_driver_tells_no_size_is_charged_by_its_shape(host, create, size) -> None:
    """Width, height and depth halve from level to level, layers do not; each channel has the size of its format. Rows
    are counted by eights and more (array_layout.h). All of them are below half a block, above which whole blocks are
    charged."""
    kind = "Mipmapped" if "Mipmapped" in create else ""
    said = host.python(
        f"""
        cuda, array = Cuda().start(), c_void_p()
        check(cuda.{create})
        charged = cuda.used()
        check(cuda.cu{kind}ArrayDestroy(array))
        say([charged, cuda.used()])
        """,
        **failing(host, "cuArrayGetMemoryRequirements:1+:801", "cuMipmappedArrayGetMemoryRequirements:1+:801"),
    ).said
    assert said == [-(-size // 512) * 512, 0]


GREEN = """
resource, desc, green = (c_char * 144)(), c_void_p(), c_void_p()
check(cuda.cuDeviceGetDevResource(0, resource, 1))
check(cuda.cuDevResourceGenerateDesc(byref(desc), resource, 1))
"""


@pytest.mark.parametrize(
    ("function", "call"),
    [
        ("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain(byref(context), 0)"),
        ("cuCtxCreate", "cuCtxCreate_v2(byref(context), 0, 0)"),
        ("cuGreenCtxCreate", "cuGreenCtxCreate(byref(green), desc, 0, 1)"),
    ],
)
def test_on_a_gpu_that_the_driver_does_not_name_contexts_open_and_fail_as_without_us(host, function, call) -> None:
    """Nothing is limited there, as nobody knows whose budget counts; the program notices nothing of that."""
    said = host.python(
        "cuda, context = Cuda(), c_void_p()\ncheck(cuda.cuInit(0))\n"
        + GREEN
        + f"say([cuda.{call}, cuda.{call}])\ncheck(cuda.cuCtxSetCurrent(cuda.primary())); say(cuda.alloc(MiB)[0])\n",
        **failing(host, "cuDeviceGetUuid:1+:999", f"{function}:1:719"),
    ).said
    assert said == [[719, 0], 0]


@pytest.mark.parametrize(("most", "lowest"), [(4096, 512), (300, 256), (200, 128), (100, 64)])
def test_the_librarys_descriptors_are_high_ones_as_far_as_the_process_may_have_them(host, daemon, most, lowest) -> None:
    """A program that closes or expects low numbers does not meet them."""
    said = host.python(
        f"""
        import resource
        before = set(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, ({most}, {most}))
        cuda = Cuda().start()
        cuda.must_alloc(MiB)
        sockets = []
        for name in set(os.listdir("/proc/self/fd")) - before:
            try:
                if os.readlink(f"/proc/self/fd/{{name}}").startswith("socket:"):
                    sockets.append(int(name))
            except OSError:
                pass
        say(sockets)
        """,
        **LIMIT,
    ).said
    assert said
    assert min(said) >= lowest
