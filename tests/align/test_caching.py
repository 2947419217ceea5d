"""Cached properties without a lock."""

from alignup.align.caching import lock_free_cached_property


class Circle:
    def __init__(self, radius):
        self.radius = radius

    @lock_free_cached_property
    def area(self):
        """Three times the square of the radius."""
        return 3 * self.radius**2


def test_a_value_is_computed_once_per_instance():
    one, other = Circle(1), Circle(2)

    assert (one.area, other.area) == (3, 12)
    one.radius = 10
    assert one.area == 3


def test_the_class_has_the_property_and_its_docstring():
    assert isinstance(Circle.area, lock_free_cached_property)
    assert Circle.area.__doc__ == "Three times the square of the radius."
