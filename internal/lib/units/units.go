package units

import (
	"fmt"
	"strconv"
	"strings"
)

// Bytes formats a number of bytes in B, KiB, MiB or GiB, as in 1.5 GiB.
func Bytes(n int64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

// ParseBytes parses sizes such as 512MiB, 512MB and 4096, which is in bytes. A size below least, in bytes, is an error.
func ParseBytes(s string, least int64) (int64, error) {
	digits := strings.TrimRight(s, "KMGTiBkb ")
	n, err := strconv.ParseFloat(digits, 64)
	units := map[string]float64{
		"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
	}
	unit, ok := units[strings.TrimSpace(s[len(digits):])]
	if err != nil || !ok || !(n >= float64(least)/unit) || n*unit > 1<<50 {
		return 0, fmt.Errorf("write a number and KiB, MiB or GiB, at least %d MiB", least>>20)
	}
	return int64(n * unit), nil
}
