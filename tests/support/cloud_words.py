"""Words of one cloud, which no message may have if the provider is generic."""

import re

CLOUD_WORDS = re.compile(r"oracle|ocir|\b(oci|oke|fss|tenancy)\b", re.IGNORECASE)
