"""Local and pullable images of the test runtime."""

import pytest

from alignup.align.errors import CriError
from alignup.run.cri.types import ContainerConfig
from alignup.testing.runtime.containers import full_name
from tests.testing.runtimes import pod, runtime_and_client, start_container, wait_exited


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("busybox", "docker.io/library/busybox:latest"),
        ("busybox:1", "docker.io/library/busybox:1"),
        ("someone/tool", "docker.io/someone/tool:latest"),
        ("registry.test/tool", "registry.test/tool:latest"),
        ("localhost:5000/a/b", "localhost:5000/a/b:latest"),
        ("localhost/tool:2", "localhost/tool:2"),
        ("busybox@sha256:0", "docker.io/library/busybox@sha256:0"),
    ],
)
def test_names_are_completed(name, full):
    assert full_name(name) == full


@pytest.mark.anyio
async def test_an_image_is_found_by_any_of_its_names(runtime, client):
    image = await client.image("busybox")

    assert image
    assert image.tags == ("docker.io/library/busybox:latest",)
    assert await client.image("docker.io/library/busybox:latest") == image
    assert await client.image(image.id) == image
    assert await client.image("busybox:2") is None


@pytest.mark.anyio
async def test_a_pulled_image_is_local(root):
    async with runtime_and_client(root, pullable=["registry.test/app:1"]) as (_, client):
        before = await client.image("registry.test/app:1")
        reference = await client.pull("registry.test/app:1")
        after = await client.image("registry.test/app:1")

    assert before is None
    assert after
    assert after.id == reference


@pytest.mark.anyio
async def test_only_pullable_images_can_be_pulled(runtime, client):
    for name in ("busybox", "registry.test/app:1"):
        with pytest.raises(CriError) as caught:
            await client.pull(name)
        assert caught.value.image_missing
        assert caught.value.details.endswith(f"{full_name(name)}: not found")

    runtime.images.add("registry.test/app:1", pullable=True)
    assert await client.pull("registry.test/app:1")


@pytest.mark.anyio
async def test_a_container_needs_a_local_image(runtime, client):
    sandbox = await client.run_sandbox(pod())
    runtime.images.remove("busybox")

    with pytest.raises(CriError) as caught:
        await client.create(sandbox, ContainerConfig(name="main", image="busybox", command=("true",)), sandbox=pod())

    assert caught.value.image_missing


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("command", "args", "code"),
    [
        pytest.param((), (), 3, id="the command of the image"),
        pytest.param((), ("exit 4",), 3, id="with arguments"),
        pytest.param(("sh", "-c"), ("exit 5",), 5, id="the command of the container"),
    ],
)
async def test_the_command_of_an_image(runtime, client, command, args, code):
    runtime.images.add("app=sh -c 'exit 3'")

    made = await start_container(client, ContainerConfig(name="main", image="app", command=command, args=args))

    assert (await wait_exited(client, made)).exit_code == code


@pytest.mark.anyio
async def test_a_container_needs_a_command(client):
    with pytest.raises(CriError, match="no command specified"):
        await start_container(client, ContainerConfig(name="main", image="busybox"))
