"""Property tests of this folder: the same examples every time, and no limit on wall time."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "scheduling",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("scheduling")
