import pytest

from jaxtrain.doctor import nvidia
from tests.doctor import recordings


@pytest.mark.parametrize(
    ("recorded", "versions"),
    [
        (recordings.A100, ("535.129.03", "12.2")),
        (recordings.H100, ("580.95.05", "13.0")),
        (recordings.CONSUMER, ("560.35.03", "12.6")),
        (recordings.OLD, ("470.82.01", "11.4")),
        (recordings.NO_DRIVER, None),
        (recordings.MISMATCH, None),
    ],
)
def test_versions_are_in_the_head(recorded, versions):
    assert nvidia.parse_versions(recorded.smi) == versions


def test_each_gpu_is_a_line():
    found = nvidia.parse_gpus(recordings.A100.gpus)
    assert [gpu.index for gpu in found] == list(range(8))
    assert found[7] == nvidia.Gpu(7, "NVIDIA A100-SXM4-80GB", 81920, 4, "535.129.03", 0, False)
    assert nvidia.summary(found) == "8 x NVIDIA A100-SXM4-80GB"


def test_what_a_card_does_not_count_is_none():
    (found,) = nvidia.parse_gpus(recordings.CONSUMER.gpus)
    assert (found.ecc_errors, found.mig, found.used_mib) == (None, False, 412)


def test_memory_shared_with_the_cpu_has_no_size():
    (found,) = nvidia.parse_gpus("0, NVIDIA GB10, [N/A], [N/A], 580.95.05, [N/A], [N/A]\n")
    assert (found.memory_mib, found.used_mib) == (0, 0)


@pytest.mark.parametrize("text", ["", recordings.NO_DRIVER.smi, recordings.LOST.smi, 'Field "x" is not a valid field.'])
def test_no_gpu_is_read_from_a_message(text):
    assert nvidia.parse_gpus(text) == []


@pytest.mark.parametrize(("recorded", "link"), [(recordings.A100, "NV12"), (recordings.H100, "NV18")])
def test_a_switch_links_all_pairs(recorded, link):
    links = nvidia.parse_links(recorded.topology)
    assert len(links) == 28
    assert set(links.values()) == {link}
    assert set(links) == {(a, b) for a in range(8) for b in range(a + 1, 8)}


def test_bridges_link_some_pairs():
    links = nvidia.parse_links(recordings.BRIDGED.topology)
    assert {pair for pair, link in links.items() if link == "NV4"} == {(0, 1), (2, 3)}
    assert len(links) == 6


@pytest.mark.parametrize("text", [recordings.CONSUMER.topology, recordings.NO_DRIVER.smi, ""])
def test_one_gpu_or_none_has_no_links(text):
    assert nvidia.parse_links(text) == {}


def test_libraries_of_the_linker():
    found = nvidia.parse_libraries(recordings.LDCONFIG)
    assert found["cudnn"] == {version: f"/usr/lib/x86_64-linux-gnu/libcudnn.so.{version}" for version in ("9", "8")}
    assert found["nccl"] == {"2": "/usr/lib/x86_64-linux-gnu/libnccl.so.2"}


def test_versions_compare_as_numbers():
    assert nvidia.as_numbers("525.60.13") < nvidia.as_numbers("525.105.17") < nvidia.as_numbers("1000")
