// Package action makes a statement of the availability-group language of a change that a program asks for as JSON. It
// owns the documents of these changes and no rule of their own: the language refuses what it refuses as text. A Plan
// says beforehand what becomes of a group that a member joins. It runs nothing. Start reading at Parse.
package action
