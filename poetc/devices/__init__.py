"""Devices: profiles with provenance, the cost model, and Graph → Problem. See docs/how-to/add-a-device.md."""

from poetc.devices.banks import names_banks, parse_banks, with_bank_budgets
from poetc.devices.building import build_problem, name_kernels
from poetc.devices.capacity import fit_notes, flash_needed_bytes
from poetc.devices.checking import check_profiles
from poetc.devices.creating import NewProfile, create_profile
from poetc.devices.loading import list_profiles, load_profile, profile_to_dict, profile_to_yaml
from poetc.devices.processors import AUTO, equal_cores, parse_processors
from poetc.devices.profile import DeviceProfile
from poetc.devices.units import (
    format_bytes,
    format_cost,
    format_enough,
    format_gap,
    format_ns,
    format_pj,
    parse_duration,
    parse_size,
)
from poetc.devices.wear import life_steps
