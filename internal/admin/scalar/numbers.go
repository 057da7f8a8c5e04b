package scalar

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"strconv"
)

// Kinds of results of arithmetic, in the place of the digits of a decimal's fraction.
const (
	asItIs   = -1 // a whole number, or a float
	quotient = -2 // a number whose digits neither language prescribes: 15 of them count
)

// largest is the bound of the whole numbers that a float has without gaps. Decimals are calculated as floats.
const largest = 1 << 53

var arithmetic = map[string]Function{
	"co_plus":  {3, strict(func(a []driver.Value) (driver.Value, error) { return calculate('+', a) }), false},
	"co_minus": {3, strict(func(a []driver.Value) (driver.Value, error) { return calculate('-', a) }), false},
	"co_times": {3, strict(func(a []driver.Value) (driver.Value, error) { return calculate('*', a) }), false},
	"co_exact": {2, strict(func(a []driver.Value) (driver.Value, error) {
		if n, whole := a[0].(int64); whole {
			return n, nil
		}
		x, ok := real(a[0])
		if !ok {
			return nil, fmt.Errorf("conversion failed when converting the value %.40q to a number", text(a[0]))
		}
		return rounded(x, integer(a[1])), nil
	}), false},
	"co_pow":   {2, strict(power), false},
	"co_sqrt":  {1, strict(func(a []driver.Value) (driver.Value, error) { return ofFloat("SQRT", math.Sqrt, a[0]) }), false},
	"co_exp":   {1, strict(func(a []driver.Value) (driver.Value, error) { return ofFloat("EXP", math.Exp, a[0]) }), false},
	"co_ln":    {1, strict(func(a []driver.Value) (driver.Value, error) { return ofFloat("LN", math.Log, a[0]) }), false},
	"co_log10": {1, strict(func(a []driver.Value) (driver.Value, error) { return ofFloat("LOG10", math.Log10, a[0]) }), false},
}

// calculate is a sum, a difference or a product: two operands, and the digits of the result's fraction. The engine's
// own operators make a float of a whole number that is too large, and leave decimals inexact.
func calculate(op byte, a []driver.Value) (driver.Value, error) {
	n, whole1 := a[0].(int64)
	m, whole2 := a[1].(int64)
	if whole1 && whole2 {
		if v, ok := wholeOf(op, n, m); ok {
			return v, nil
		}
		return nil, errors.New("bigint out of range")
	}
	x, ok1 := real(a[0])
	y, ok2 := real(a[1])
	if !ok1 || !ok2 {
		return nil, errors.New("an operand of arithmetic is no number")
	}
	var v float64
	switch op {
	case '+':
		v = x + y
	case '-':
		v = x - y
	default:
		v = x * y
	}
	if !finite(v) && finite(x) && finite(y) {
		return nil, errors.New("arithmetic overflow: the result is out of range")
	}
	return rounded(v, integer(a[2])), nil
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// wholeOf calculates with whole numbers, and reports whether the result is one.
func wholeOf(op byte, n, m int64) (int64, bool) {
	switch op {
	case '+':
		v := n + m
		return v, (v > n) == (m > 0)
	case '-':
		v := n - m
		return v, (v < n) == (m > 0)
	}
	if n == 0 || m == 0 {
		return 0, true
	}
	v := n * m
	return v, v/m == n && (n != math.MinInt64 || m != -1) && (m != math.MinInt64 || n != -1)
}

// rounded returns a result with the digits that it has in decimal arithmetic: 0.1 + 0.2 is 0.3. A decimal of more
// digits than a float keeps is left as it is.
func rounded(x float64, digits int64) float64 {
	switch {
	case !finite(x) || x == 0:
		return x
	case digits == quotient:
		v, err := strconv.ParseFloat(strconv.FormatFloat(x, 'g', 15, 64), 64)
		if err != nil {
			return x
		}
		return v
	case digits >= 0 && math.Abs(x)*math.Pow10(int(digits)) < largest:
		return roundTo(x, int(digits), false)
	}
	return x
}

// divide is / or, with remainder, %: two operands, and the digits of the result's fraction, if they are given.
func divide(a []driver.Value, remainder bool) (driver.Value, error) {
	digits := int64(asItIs)
	if len(a) > 2 {
		digits = integer(a[2])
	}
	n, whole1 := a[0].(int64)
	m, whole2 := a[1].(int64)
	x, ok1 := real(a[0])
	y, ok2 := real(a[1])
	switch {
	case !ok1 || !ok2:
		return nil, errors.New("an operand of a division is no number")
	case y == 0:
		return nil, errors.New("division by zero")
	case whole1 && whole2 && m == -1 && remainder:
		return int64(0), nil
	case whole1 && whole2 && n == math.MinInt64 && m == -1:
		return nil, errors.New("bigint out of range")
	case whole1 && whole2 && remainder:
		return n % m, nil
	case whole1 && whole2:
		return n / m, nil
	case remainder:
		return rest(x, y, digits), nil
	}
	v := x / y
	if !finite(v) && finite(x) && finite(y) {
		return nil, errors.New("arithmetic overflow: the result is out of range")
	}
	return rounded(v, digits), nil
}

// rest returns the remainder of a division. That of decimals is taken of whole numbers of their last digit: 0.3 % 0.1
// is 0.
func rest(x, y float64, digits int64) float64 {
	scale := math.Pow10(int(max(digits, 0)))
	if n, m := math.Round(x*scale), math.Round(y*scale); digits >= 0 && m != 0 && math.Abs(n) < largest && math.Abs(m) < largest {
		return rounded(math.Mod(n, m)/scale, digits)
	}
	return math.Mod(x, y)
}

// power is POWER. Of whole numbers it is one, or an error.
func power(a []driver.Value) (driver.Value, error) {
	n, whole1 := a[0].(int64)
	m, whole2 := a[1].(int64)
	if whole1 && whole2 {
		if m < 0 {
			return nil, errors.New("POWER of whole numbers with a negative exponent is 0 in T-SQL and a fraction in PostgreSQL: CAST the base to float")
		}
		return wholePower(n, m)
	}
	x, ok1 := real(a[0])
	y, ok2 := real(a[1])
	v := math.Pow(x, y)
	if !ok1 || !ok2 || !finite(v) && finite(x) && finite(y) {
		return nil, fmt.Errorf("POWER of %.40q and %.40q has no result, or one out of range", text(a[0]), text(a[1]))
	}
	return v, nil
}

// wholePower multiplies n with itself m times.
func wholePower(n, m int64) (driver.Value, error) {
	if n == 0 || n == 1 || n == -1 {
		m = min(m, 2-m%2) // an even or an odd exponent
	}
	out := int64(1)
	for range m {
		v, ok := wholeOf('*', out, n)
		if !ok {
			return nil, errors.New("POWER: bigint out of range")
		}
		out = v
	}
	return out, nil
}

// ofFloat calls a function of floats. A number without a result, such as -1 for a root, is an error, as in both
// languages; the engine's own functions return NULL.
func ofFloat(name string, f func(float64) float64, of driver.Value) (driver.Value, error) {
	x, ok := real(of)
	if !ok {
		return nil, fmt.Errorf("%s of %.40q, which is no number", name, text(of))
	}
	v := f(x)
	if !finite(v) && finite(x) {
		return nil, fmt.Errorf("%s of %s has no result, or one out of range", name, floatText(x))
	}
	return v, nil
}

// round is ROUND: value, digits, whether to cut them off.
func round(a []driver.Value) (driver.Value, error) {
	digits, cut := 0, false
	if len(a) > 1 {
		digits = int(min(max(integer(a[1]), -30), 30))
	}
	if len(a) > 2 {
		cut = integer(a[2]) != 0
	}
	if n, whole := a[0].(int64); whole {
		return roundWhole(n, digits, cut)
	}
	x, ok := real(a[0])
	if !ok {
		return nil, fmt.Errorf("ROUND of %.40q, which is no number", text(a[0]))
	}
	return roundTo(x, digits, cut), nil
}

// roundWhole rounds a whole number to tens, hundreds and so on.
func roundWhole(n int64, digits int, cut bool) (driver.Value, error) {
	if digits >= 0 {
		return n, nil
	}
	if digits < -18 { // tens of the 19th digit are out of range
		return int64(0), nil
	}
	unit := int64(1)
	for range -digits {
		unit *= 10
	}
	down := n / unit * unit
	if rest := n - down; !cut && (rest >= unit-unit/2 || rest <= -(unit-unit/2)) {
		step := unit
		if n < 0 {
			step = -unit
		}
		v, ok := wholeOf('+', down, step)
		if !ok {
			return nil, errors.New("ROUND: bigint out of range")
		}
		return v, nil
	}
	return down, nil
}
