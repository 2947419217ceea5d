"""The pictures of the documentation show what is drawn today."""

import pytest

from tests.picture import gallery


@pytest.mark.parametrize("name", sorted(gallery.drawn()))
def test_the_documentation_shows_the_pictures_of_today(name):
    picture = gallery.drawn()[name]
    shown = (gallery.PICTURES / name).read_text(encoding="utf-8")

    assert shown == picture, "run: python -m tests.picture.gallery"
