"""The pictures of the documentation are up to date."""

import pytest

from tests.picture import gallery


@pytest.mark.parametrize("name", sorted(gallery.drawn()))
def test_the_pictures_of_the_documentation_are_up_to_date(name):
    picture = gallery.drawn()[name]
    shown = (gallery.PICTURES / name).read_text(encoding="utf-8")

    assert shown == picture, "run: python -m tests.picture.gallery"
