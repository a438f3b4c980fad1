"""Devices: profiles with provenance, the cost model, and Graph → Problem. See docs/how-to/add-a-device.md."""

from poetc.devices.banks import names_banks, parse_banks, ram_banks, with_bank_budgets
from poetc.devices.building import build_problem, is_flash_resident, name_kernels
from poetc.devices.capacity import fit_notes, flash_needed_bytes
from poetc.devices.checking import check_profiles
from poetc.devices.creating import NewProfile, create_profile
from poetc.devices.loading import list_profiles, load_profile, profile_to_dict, profile_to_yaml
from poetc.devices.processors import AUTO, equal_cores, parse_processors
from poetc.devices.profile import DeviceProfile, Quantity, Source, Store
from poetc.devices.units import (
    format_bytes,
    format_cost,
    format_enough,
    format_ns,
    format_pj,
    format_share,
    parse_duration,
    parse_size,
)
from poetc.devices.wear import life_steps

__all__ = [
    "AUTO",
    "DeviceProfile",
    "NewProfile",
    "Quantity",
    "Source",
    "Store",
    "build_problem",
    "check_profiles",
    "create_profile",
    "equal_cores",
    "fit_notes",
    "flash_needed_bytes",
    "format_bytes",
    "format_cost",
    "format_enough",
    "format_ns",
    "format_pj",
    "format_share",
    "is_flash_resident",
    "life_steps",
    "list_profiles",
    "load_profile",
    "name_kernels",
    "names_banks",
    "parse_banks",
    "parse_duration",
    "parse_processors",
    "parse_size",
    "profile_to_dict",
    "profile_to_yaml",
    "ram_banks",
    "with_bank_budgets",
]
