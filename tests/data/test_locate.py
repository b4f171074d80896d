"""Files that are not the published ones, or not all of them, are refused."""

import pytest
from data_files import cifar10_members, data_folder, with_test_files, write

from balcal.core import BalcalError
from balcal.data import known_files
from balcal.data.locate import StoredFiles

__all__ = ["data_folder"]


@pytest.mark.parametrize("spoil", ["cut", "flip", "fewer"])
def test_files_that_are_not_whole_are_refused(spoil, data_folder):
    members, _, _ = cifar10_members("cifar-10-batches-bin", "bin")
    name, content = members[2]
    changed = {"cut": content[:-7], "flip": bytes([255]) + content[1:], "fewer": content[:3073]}[spoil]
    write(data_folder, [*members, (name, changed)])
    stored = with_test_files(known_files.CIFAR10, "cifar-10-batches-bin")
    if spoil == "flip":
        stored()  # a label that is out of range: seen by the split, or by a checksum
        return
    if spoil == "fewer":
        stored = StoredFiles(stored.name, stored.forms, sizes=(20, 3))
    with pytest.raises(BalcalError, match=r"it is cut off|is not all of cifar10: it has \(17, 3\) images"):
        stored()


def test_a_file_with_another_checksum_is_refused(data_folder):
    members, _, _ = cifar10_members("cifar-10-batches-py", "py")
    write(data_folder, members)
    with pytest.raises(BalcalError, match=r"data_batch_1 is not the published file: its checksum differs"):
        known_files.CIFAR10()
