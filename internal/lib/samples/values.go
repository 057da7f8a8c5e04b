package samples

import "strconv"

// Values are the values of slots. As JSON, a slot without one is null, and a value has four digits that count.
type Values []float32

// MarshalJSON returns the values as an array.
func (v Values) MarshalJSON() ([]byte, error) {
	b := make([]byte, 1, 8*len(v)+2)
	b[0] = '['
	for i, x := range v {
		if i > 0 {
			b = append(b, ',')
		}
		if !isNumber(x) {
			b = append(b, "null"...)
			continue
		}
		b = strconv.AppendFloat(b, float64(x), 'g', 4, 32)
	}
	return append(b, ']'), nil
}
