"""The number types of settings, each with its allowed range."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Positive = Annotated[int, Field(ge=1, lt=2**31)]
Count = Annotated[int, Field(ge=0, lt=2**31)]
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
PositiveFloat = Annotated[float, Field(gt=0.0)]
