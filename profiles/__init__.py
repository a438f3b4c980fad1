"""Device profiles, one YAML file each: docs/how-to/add-a-device.md."""
